"""The README's table of decode speed: table.py [bench/results/h200.json]"""
import json
import sys

TURBO4, TURBO3 = "turboquant<4>", "turboquant<3>"
KEY4, KEY3 = f"balanced<centered<{TURBO4}>>", f"balanced<centered<{TURBO3}>>"
EXACT = "exact<half>"
COLUMNS = [(TURBO4, TURBO4, 0), (KEY4, TURBO4, 128), (KEY3, TURBO3, 128), (EXACT, EXACT, 128)]
POINTS = [(8, 131072, 32), (32, 32768, 32), (32, 32768, 64), (8, 32768, 32), (64, 4096, 32), (32, 4096, 32),
          (1, 131072, 32), (1, 32768, 32), (1, 4096, 32)]


def main():
    with open(sys.argv[1] if len(sys.argv) > 1 else "bench/results/h200.json", encoding="utf-8") as file:
        rows = json.load(file)["rows"]
    decode = {}
    for r in rows:
        if r["bench"] == "decode" and r["percent_of_roofline"] is not None:
            decode[r["batch"], r["tokens"], r["q_heads"], r["key"], r["value"], r["window"]] = r
    for point in POINTS:
        cells = [decode[point + column] for column in COLUMNS]
        shown = " | ".join(f"{r['percent_of_roofline']:.0f} ({r['us']:.{0 if r['us'] >= 10 else 1}f})" for r in cells)
        gains = " / ".join(f"{r['speedup_exact_half']:.1f}" for r in cells[1:3])
        batch, tokens, q_heads = point
        print(f"| {batch} x {tokens // 1024}K, {q_heads}/8 | {shown} | {gains} |")


if __name__ == "__main__":
    main()
