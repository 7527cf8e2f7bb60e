"""PyTorch's attention over the same shapes as bench/gpu/decode.cu, contiguous half keys and values: sdpa.py [FILE]

Several caches in one CUDA graph, so that they lie past the L2; the best of PyTorch's back ends; microseconds a layer.
Prints a table and writes rows of JSON (bench/results/h200.json says what they mean).
"""
import json
import statistics
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, DIM = 8, 128
POINTS = [(1, 4096, 32), (1, 32768, 32), (1, 131072, 32), (32, 4096, 32), (64, 4096, 32), (8, 32768, 32),
          (32, 32768, 32), (8, 131072, 32), (32, 32768, 64)]
BACK_ENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def seconds(launch, layers):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3 / layers)
    return statistics.median(times)


def normal(*shape):
    return torch.randn(*shape, device="cuda", dtype=torch.half)


def measure(batch, tokens, q_heads):
    """Seconds and back end of the fastest, or None where none takes the shape."""
    cache_bytes = 4 * batch * tokens * HEADS * DIM
    layers = max(1, min(32, (3 << 30) // cache_bytes))
    caches = [tuple(normal(batch, HEADS, tokens, DIM) for _ in range(2)) for _ in range(layers)]
    q = normal(batch, q_heads, 1, DIM)
    times = []
    for name, back_end in BACK_ENDS.items():

        def launch():
            with sdpa_kernel(back_end):
                for k, v in caches:
                    torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

        try:
            times.append((seconds(launch, layers), name))
        except RuntimeError as error:
            print(f"sdpa {name} {batch} x {tokens}: {str(error).splitlines()[0]}", file=sys.stderr)
    return min(times, default=None)


def main():
    rows = []
    for batch, tokens, q_heads in POINTS:
        best = measure(batch, tokens, q_heads)
        torch.cuda.empty_cache()
        if best is None:
            continue
        print(f"sdpa {batch:3d} x {tokens:6d} {q_heads}/{HEADS}  {best[0] * 1e6:9.2f} us  {best[1]}")
        rows.append({
            "bench": "decode", "key": "exact<half>", "value": "exact<half>", "batch": batch, "tokens": tokens,
            "q_heads": q_heads, "kv_heads": HEADS, "head_dim": DIM, "window": 0, "sinks": 0,
            "us": round(best[0] * 1e6, 3), "bytes": 4 * batch * tokens * HEADS * DIM, "roofline_us": None,
            "percent_of_roofline": None, "speedup_exact_half": None, "path": f"torch_sdpa_{best[1]}"
        })
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
