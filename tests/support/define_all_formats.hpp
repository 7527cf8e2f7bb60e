#pragma once

#include <memory>
#include <vector>

#include <kvant/half.hpp>
#include <kvant/plan/layer.hpp>

#include "support/all_formats.hpp"
#include "support/unit_fixture.hpp"

// Included by one file of a program: it compiles every format for all of them.

namespace support {
namespace {

template <class Key, class Value>
void add(std::vector<codec_pointer>& all, char const* name) {
  all.push_back(std::make_shared<codec_of_pair<Key, Value, true>>(name));
}
template <class Layer>
void add(std::vector<codec_pointer>& all, char const* name) {
  add<typename Layer::key, typename Layer::value>(all, name);
}

}  // namespace

std::vector<codec_pointer> all_formats() {
  using namespace kvant;
  std::vector<codec_pointer> all;
  add<turboquant_4bit>(all, "turboquant_4bit");
  add<turboquant_3bit>(all, "turboquant_3bit");
  add<turboquant_2bit>(all, "turboquant_2bit");
  add<turboquant_1bit>(all, "turboquant_1bit");
  add<plain_turboquant_4bit>(all, "plain_turboquant_4bit");
  add<plain_turboquant_3bit>(all, "plain_turboquant_3bit");
  add<plain_turboquant_2bit>(all, "plain_turboquant_2bit");
  add<plain_turboquant_1bit>(all, "plain_turboquant_1bit");
  add<kivi_2bit>(all, "kivi_2bit");
  add<kivi_2bit_g64>(all, "kivi_2bit_g64");
  add<kivi_4bit>(all, "kivi_4bit");
  add<bonsai_1bit>(all, "bonsai_1bit");
  add<bonsai_1bit_rotated>(all, "bonsai_1bit_rotated");
  add<exact_layer>(all, "exact_layer");
  add<exact<bfloat16>, exact<bfloat16>>(all, "exact<bfloat16>");
  add<exact<float>, turboquant<2, plain_norm>>(all, "exact<float>, plain norm");
  add<centered<turboquant<4>>, turboquant<1, norm_corrected>>(all, "centered<turboquant<4>>, norm corrected");
  add<centered<turboquant<1>>, exact<half>>(all, "centered<turboquant<1>>, exact");
  add<turboquant_key<3, adjacent_pairs>, q1_0<64>>(all, "balanced in adjacent pairs, q1_0<64>");
  add<turboquant_key<2, first_pairs<32, half_split_pairs>>, kivi_value<8, 64>>(
      all, "balanced in first pairs, kivi_value<8, 64>");
  add<balanced<centered<q1_0_rotated<>>, single_channels>, turboquant<3>>(all, "balanced and centered signs");
  add<centered<kivi_key<2, 64>>, kivi_value<3, 64>>(all, "centered<kivi_key<2, 64>>, kivi_value<3, 64>");
  add<kivi_key<3, 64>, kivi_value<4, 32>>(all, "kivi_key<3, 64>, kivi_value<4, 32>");
  add<kivi_key<8, 32>, turboquant<4>>(all, "kivi_key<8, 32>, turboquant<4>");
  return all;
}

}  // namespace support
