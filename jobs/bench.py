#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""The rows of bench.c in PyTorch, for jobs/bench-table: a line "ROW seconds peak-bytes quiet-rounds" each, by tabs.

    bench.py [-t THREADS] [-r ROUNDS] [-d DIR] [ROW...]
    mpirun is not needed for --ranks 2: gloo starts its own processes (rows mlp64, mlp512, gpts, gptl, allreduce)
"""
import argparse
import os
import resource
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SHAPES = {"gpts": (4, 128, 4, 128, 8), "gptl": (6, 384, 6, 256, 4)}
SINGLE = ("rmsnorm", "batchnorm", "groupnorm", "mse", "bcelogits", "cumsum", "maxpool", "avgpool", "gridsample", "lstm",
          "gru")
SHARED = ("mlp64", "mlp512", "gpts", "gptl", "allreduce")


def median(fn, least, rounds, ranks=1):
    """Median seconds over rounds that were not preempted (all, if none was), and how many there were."""
    fn()
    start = time.perf_counter()
    fn()
    repeat = max(1, int(least / (time.perf_counter() - start + 1e-9)))
    if ranks > 1:
        n = torch.tensor([repeat])
        torch.distributed.all_reduce(n, op=torch.distributed.ReduceOp.MAX)
        repeat = int(n)
    good, every = [], []
    for _ in range(rounds):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        start = time.perf_counter()
        for _ in range(repeat):
            fn()
        seconds = (time.perf_counter() - start) / repeat
        every.append(seconds)
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - before <= 1 + 10 * seconds * repeat:
            good.append(seconds)
    return (statistics.median(good) if good else min(every)), len(good)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.qkv, self.proj = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.norm2, self.fc, self.out = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers, dim, heads, context):
        super().__init__()
        self.token, self.position = nn.Embedding(256, dim), nn.Embedding(context, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        y = self.token(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        return F.linear(self.norm(y), self.token.weight).flatten(0, 1)


def model(name):
    if name in SHAPES:
        layers, dim, heads, length, batch = SHAPES[name]
        x = torch.randint(0, 256, (batch, length))
        return GPT(layers, dim, heads, length), x, torch.randint(0, 256, (batch * length,))
    if name == "cnn":
        def conv(i, o):
            return [nn.Conv2d(i, o, 3, padding=1), nn.ReLU()]
        m = nn.Sequential(*conv(3, 32), *conv(32, 64), nn.MaxPool2d(2), *conv(64, 128), nn.MaxPool2d(2), nn.Flatten(),
                          nn.Linear(128 * 64, 10)).to(memory_format=torch.channels_last)
        x = torch.randn(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
        return m, x, torch.randint(0, 10, (64,))
    batch = int(name[3:])
    m = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
    return m, torch.randn(batch, 784), torch.randint(0, 10, (batch,))


def trainer(name, reduced, ranks):
    m, x, target = model(name)
    if ranks > 1:
        m = nn.parallel.DistributedDataParallel(m)
    try:
        opt = torch.optim.AdamW(m.parameters(), fused=True)
    except (RuntimeError, TypeError):
        opt = torch.optim.AdamW(m.parameters())

    def step():
        opt.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=reduced):
            loss = F.cross_entropy(m(x), target)
        loss.backward()
        opt.step()

    return step


def many():
    w = [torch.full((1000000,), 0.5, requires_grad=True) for _ in range(10)]
    for p in w:
        p.grad = torch.ones_like(p)
    return w


def adamw():
    try:
        return torch.optim.AdamW(many(), fused=True).step
    except (RuntimeError, TypeError):
        return torch.optim.AdamW(many()).step


def unscale():
    grads = [p.grad for p in many()]

    def run():
        torch._foreach_mul_(grads, 1.0)
        return bool(torch.isfinite(torch.stack([g.sum() for g in grads])).all())

    return run


def first(layer):
    """The output of a recurrent layer, without its states."""
    return lambda z: layer(z)[0]


def pointwise(name, dtype):
    """Forward and backward of one op, on the shapes of bench.c."""
    image, flat = (16, 64, 64, 64), (4096, 1024)
    target = torch.arange(4096) % 1024
    shares = torch.rand(flat).to(dtype)
    grid = (torch.rand(4, 128, 128, 2) * 2 - 1).to(dtype).requires_grad_()
    fixed = {"dtype": dtype}
    shape, make = {
        "layernorm": (flat, lambda: nn.LayerNorm(1024, **fixed).requires_grad_(False)),
        "softmax": (flat, lambda: lambda z: F.softmax(z, 1)),
        "gelu": (flat, lambda: F.gelu),
        "gelutanh": (flat, lambda: lambda z: F.gelu(z, approximate="tanh")),
        "relu": (flat, lambda: F.relu),
        "crossentropy": (flat, lambda: lambda z: F.cross_entropy(z, target)),
        "rmsnorm": (flat, lambda: nn.RMSNorm(1024, eps=1e-5, **fixed).requires_grad_(False)),
        "batchnorm": (image, lambda: nn.BatchNorm2d(64, track_running_stats=False, **fixed).requires_grad_(False)),
        "groupnorm": (image, lambda: nn.GroupNorm(8, 64, **fixed).requires_grad_(False)),
        "mse": (flat, lambda: lambda z: F.mse_loss(z, shares)),
        "bcelogits": (flat, lambda: lambda z: F.binary_cross_entropy_with_logits(z, shares)),
        "cumsum": (flat, lambda: lambda z: torch.cumsum(z, 1)),
        "maxpool": (image, lambda: lambda z: F.max_pool2d(z, 2)),
        "avgpool": (image, lambda: lambda z: F.avg_pool2d(z, 2)),
        "gridsample": ((4, 16, 128, 128), lambda: lambda z: F.grid_sample(z, grid, align_corners=False)),
        "lstm": ((32, 64, 256), lambda: first(nn.LSTM(256, 256, batch_first=True, **fixed))),
        "gru": ((32, 64, 256), lambda: first(nn.GRU(256, 256, batch_first=True, **fixed))),
    }[name]
    fn = make()
    x = torch.randn(shape).to(dtype).requires_grad_()
    y = fn(x)
    dy = torch.full(y.shape, 0.25, dtype=y.dtype) if y.ndim else None

    def run():
        x.grad = grid.grad = None
        fn(x).backward(dy)

    return run


def small():
    x, c, g = torch.full((16,), 0.5, requires_grad=True), torch.full((16,), 0.999), torch.ones(16)

    def run():
        x.grad = None
        y = x
        for _ in range(25):
            y = torch.relu(torch.tanh(y * c + c))
        y.backward(g)

    return run


def checkpoint(folder):
    state = {f"w{i}": torch.full((1 << 20,), float(i)) for i in range(100)}
    path = os.path.join(folder, "bench.pt.tmp")

    def run():
        with open(path, "wb") as f:
            torch.save(state, f)
            f.flush()
            os.fsync(f.fileno())

    return run, path


def work(row, folder, ranks):
    """Function, seconds a round at least, divisor."""
    name, kind = row.rsplit("-", 1)
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    if name == "product":
        a, b = torch.full((1024, 1024), 0.5).to(dtype), torch.full((1024, 1024), 0.25).to(dtype)
        return (lambda: a @ b), 0.1, 1
    if name == "adamw":
        return (adamw() if kind == "f32" else None), 0.1, 1
    if name == "unscale":
        return unscale(), 0.1, 1
    if name == "small":
        return small(), 0.05, 100
    if name == "allreduce":
        t = torch.zeros(10000000)
        return (lambda: torch.distributed.all_reduce(t)), 0, 1
    if name in SHARED or name == "cnn":
        return trainer(name, kind == "bf16", ranks), 0.2, 1
    return pointwise(name, dtype), 0.05, 1


def slow_bfloat16():
    """Whether products in bfloat16 go through a reference loop here: minutes a step, and no comparison."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        a = torch.ones((128, 128), dtype=dtype)
        a @ a
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return seconds[1] > 8 * seconds[0]


def rows_of(names, ranks):
    every = ["product", "adamw", "unscale", "layernorm", "softmax", "crossentropy", "gelu", "gelutanh", "relu", *SINGLE,
             "small", "mlp64", "mlp512", "cnn", "gpts", "gptl", "allreduce", "checkpoint"]
    plain = SINGLE + ("unscale", "small", "allreduce", "checkpoint")
    if slow_bfloat16():
        print("bench.py: PyTorch has no fast bfloat16 products on this processor: rows left out", file=sys.stderr)
        plain += ("product", "mlp64", "mlp512", "cnn", "gpts", "gptl")
    for name in every:
        if (names and name not in names) or (ranks > 1 and name not in SHARED) or (ranks == 1 and name == "allreduce"):
            continue
        for kind in ("f32",) if name in plain else ("f32", "bf16"):
            yield f"{name}-{kind}"


def peak_bytes():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def run(rank, args):
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    if args.ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(args.port))
        torch.distributed.init_process_group("gloo", rank=rank, world_size=args.ranks)
    for row in rows_of(args.row, args.ranks):
        base = peak_bytes()
        path = None
        if row.startswith("checkpoint"):
            fn, path = checkpoint(args.dir)
            least, divisor = 0, 1
        else:
            fn, least, divisor = work(row, args.dir, args.ranks)
        if fn is None:
            continue
        seconds, quiet = median(fn, least, args.rounds, args.ranks)
        if path:
            os.unlink(path)
        if rank == 0:
            print(f"{row}\t{seconds / divisor:.6g}\t{peak_bytes() - base}\t{quiet}", flush=True)
    if args.ranks > 1:
        torch.distributed.destroy_process_group()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-t", "--threads", type=int, default=1)
    p.add_argument("-r", "--rounds", type=int, default=9)
    p.add_argument("-d", "--dir", default=".")
    p.add_argument("--ranks", type=int, default=1)
    p.add_argument("--port", type=int, default=29511)
    p.add_argument("row", nargs="*")
    args = p.parse_args()
    if args.ranks > 1:
        torch.multiprocessing.spawn(run, args=(args,), nprocs=args.ranks)
    else:
        run(0, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
