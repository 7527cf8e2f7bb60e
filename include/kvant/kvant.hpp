#pragma once

/// Everything of kvant that needs nothing but the standard library. JSON, safetensors and saved files: <kvant/io/...>.
#include <kvant/attention/cpu_attention.hpp>
#include <kvant/attention/executor.hpp>
#include <kvant/attention/merge.hpp>
#include <kvant/attention/options.hpp>
#include <kvant/attention/reference.hpp>
#include <kvant/cache/append.hpp>
#include <kvant/cache/backend.hpp>
#include <kvant/cache/geometry.hpp>
#include <kvant/cache/host_backend.hpp>
#include <kvant/cache/kv_cache.hpp>
#include <kvant/cache/memory.hpp>
#include <kvant/cache/page_codec.hpp>
#include <kvant/cache/page_writer.hpp>
#include <kvant/cache/stats.hpp>
#include <kvant/cache/step.hpp>
#include <kvant/cache/views.hpp>
#include <kvant/config.hpp>
#include <kvant/format/policies.hpp>
#include <kvant/half.hpp>
#include <kvant/layout/page_layout.hpp>
#include <kvant/plan/layer.hpp>
#include <kvant/plan/plan.hpp>
#include <kvant/result.hpp>
#include <kvant/status.hpp>
#include <kvant/version.hpp>
