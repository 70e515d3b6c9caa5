#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the golden files of tests/test_golden.c: what PyTorch computes, and what it should have computed.

    python3 tests/golden/make.py [ops] [fft] [train] [scaler]      (all when none is named)

Needs torch (CPU), numpy and h5py; the test suite needs none of them, it reads the files that lie here. Seeds are fixed
and one thread is used, so the same torch on the same kind of processor gives the same files. The versions are noted in
the root attribute `made_with` of each file.

ops.h5      /OP/CASE is one call of lks_OP. Attributes of the group: `args` ("dim=1 keepdim=0 stride=2,1"),
            `needs` (one digit per input, 1: a gradient is asked for), `out` (dtype and shape of each result), `policy`
            (of the cpu and of the cuda table). Datasets: in0, in1, ... (float32, int64 or uint8 for bool), dy0, ...
            (gradient of each floating result), f64 (results, then gradients of the inputs in `needs`, one after
            another, by torch in float64 on the same numbers) and f32 (by torch in float32). A dataset bf16.cpu,
            bf16.cuda, f16.cpu, f16.cuda is the same under autocast with that dtype and that policy table (bf16 or f16
            alone: both tables do the same): the float64 reference on inputs and gradients rounded as the policy
            rounds. Its attributes: `leaf` (dtype of each input as the program holds it), `out` (dtype of each result),
            `unit` (the dtype whose ulp counts, for each tensor of the reference), `err` and `err_each` (torch's own
            error, see test_golden.c, for each), `how` torch's own result came about: autocast (its CPU autocast, where
            that follows the same policy), hand (the same call on inputs cast by hand) or rounded (torch has no such
            kernel on the CPU: the reference rounded once).
fft.h5      the same of complex tensors, Fourier transforms, linear algebra: complex tensors go in and out as real ones,
            eigenvectors and the like in forms that do not depend on their signs.
train.h5    optimizers, learning-rate schedules, 50 steps of models.
scaler.h5   what torch.amp.GradScaler does in a scripted sequence.
"""
import math
import os
import sys
import zlib

import h5py
import numpy as np
import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
SHORT = {"bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {torch.float32: "float32", torch.float64: "float64", torch.bfloat16: "bfloat16", torch.float16: "float16",
         torch.int64: "int64", torch.int32: "int32", torch.bool: "bool", torch.uint8: "uint8"}
DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
LEAST = {torch.float64: -1074, torch.float32: -149, torch.float16: -24, torch.bfloat16: -133}

# Autocast policy of the ops here that have one, as torch's table for either device has it; what is in no list runs in
# the dtype of its inputs.
POLICY = {
    "cuda": {
        "lower": "matmul mm bmm addmm baddbmm addbmm addmv addr mv multi_dot chain_matmul linear conv1d conv2d conv3d "
                 "conv_transpose1d conv_transpose2d conv_transpose3d prelu rnn gru lstm rnn_cell gru_cell lstm_cell "
                 "einsum multi_head_attention",
        "fp32": "pow exp expm1 log log1p log2 log10 rsqrt reciprocal acos asin cosh sinh tan erfinv softplus softmax "
                "log_softmax softmin layer_norm group_norm norm prod sum cumsum cumprod mse_loss l1_loss "
                "smooth_l1_loss nll_loss cross_entropy cross_entropy_weighted binary_cross_entropy_with_logits kl_div "
                "poisson_nll_loss "
                "hinge_embedding_loss margin_ranking_loss soft_margin_loss multi_margin_loss multilabel_margin_loss "
                "cosine_embedding_loss triplet_margin_loss cdist pdist dist cosine_similarity renorm normalize",
        "promote": "addcdiv addcmul atan2 bilinear cross dot grid_sample index_put scatter_add tensordot",
        "error": "binary_cross_entropy",
    },
    "cpu": {
        # multi_dot and chain_matmul are in no list, but the products they are made of are
        "lower": "matmul mm bmm addmm baddbmm addbmm multi_dot chain_matmul linear conv1d conv2d conv3d conv_tbc "
                 "conv_transpose1d "
                 "conv_transpose2d conv_transpose3d linalg_vecdot prelu scaled_dot_product_attention rnn gru lstm "
                 "einsum multi_head_attention",
        "fp32": "avg_pool3d adaptive_avg_pool3d max_pool3d adaptive_max_pool3d max_unpool2d max_unpool3d "
                "fractional_max_pool2d fractional_max_pool3d prod mse_loss l1_loss huber_loss nll_loss cross_entropy "
                "cross_entropy_weighted binary_cross_entropy binary_cross_entropy_with_logits kl_div poisson_nll_loss "
                "hinge_embedding_loss margin_ranking_loss soft_margin_loss multi_margin_loss multilabel_margin_loss "
                "cosine_embedding_loss triplet_margin_loss ctc_loss cdist trace quantile nanquantile grid_sample "
                "fake_quantize_per_tensor_affine "
                "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d replication_pad3d",
        "promote": "cat stack index_copy",
    },
}


def policy(op, table):
    for kind, names in POLICY[table].items():
        if op in names.split():
            return kind
    return "none"


# --- inputs: every number is exact in bfloat16 and float16, so that each dtype sees the same ones ---------------------

class Input:
    """needs: a gradient is asked for. wide: float32 in every variant (weights and statistics of norms)."""

    def __init__(self, make, shape, needs=True, wide=False):
        self.make, self.shape, self.needs, self.wide = make, shape, needs, wide


def rounded(a):
    return torch.from_numpy(np.asarray(a, dtype=np.float32)).bfloat16().float().numpy()


def real(*shape, scale=1.0, **kw):
    return Input(lambda r: rounded(r.standard_normal(shape) * scale), shape, **kw)


def spread(*shape, lo=-4.0, hi=4.0, **kw):
    return Input(lambda r: rounded(r.uniform(lo, hi, shape)), shape, **kw)


def positive(*shape, lo=0.25, hi=4.0, **kw):
    return Input(lambda r: rounded(r.uniform(lo, hi, shape)), shape, **kw)


def away(*shape, lo=0.25, hi=4.0, **kw):
    return Input(lambda r: rounded(r.uniform(lo, hi, shape) * r.choice([-1.0, 1.0], shape)), shape, **kw)


def apart(*shape, **kw):
    def make(r):
        n = int(np.prod(shape))
        return rounded((r.permutation(n) - n // 2).reshape(shape) / 16.0)
    return Input(make, shape, **kw)


def index(*shape, below=1, dtype=np.int64):
    return Input(lambda r: r.integers(0, below, shape).astype(dtype), shape, needs=False)


def given(values, dtype=np.float32, **kw):
    a = np.asarray(values, dtype=dtype)
    return Input(lambda r: a, a.shape, **{"needs": dtype == np.float32, **kw})


def flags(*shape, p=0.5):
    return Input(lambda r: r.uniform(size=shape) < p, shape, needs=False)


# --- cases ------------------------------------------------------------------------------------------------------------

CASES = []


def case(op, what, fn, inputs, autocast=True, rule=None, **args):
    """rule: the name whose autocast policy holds, if it is not the function's."""
    CASES.append((op, what, fn, inputs, autocast, rule or op, args))


def ints(x):
    return [int(v) for v in x] if isinstance(x, (list, tuple)) else [int(x)]


def view_cases():
    x = real(2, 3, 4)
    case("reshape", "fold", lambda x, shape: x.reshape(shape), [x], shape=[6, -1])
    case("flatten", "last two", lambda x, d, e: x.flatten(d, e), [x], d=1, e=2)
    case("permute", "201", lambda x, dims: x.permute(dims), [x], dims=[2, 0, 1])
    case("transpose", "negative", lambda x, d0, d1: x.transpose(d0, d1), [x], d0=-1, d1=0)
    case("slice", "steps", lambda x, dim, start, end, step: x[:, :, start:end:step], [real(2, 3, 7)], dim=2, start=-6,
         end=100, step=2)
    case("narrow", "middle", lambda x, dim, start, length: x.narrow(dim, start, length), [x], dim=1, start=1, length=2)
    case("select", "last", lambda x, dim, index: x.select(dim, index), [x], dim=-1, index=-1)
    case("expand", "both", lambda x, shape: x.expand(shape), [real(3, 1)], shape=[2, -1, 5])
    case("squeeze", "one", lambda x, dim: x.squeeze(dim), [real(3, 1, 2)], dim=1)
    case("squeeze", "kept", lambda x, dim: x.squeeze(dim), [real(3, 1, 2)], dim=0)
    case("unsqueeze", "last", lambda x, dim: x.unsqueeze(dim), [x], dim=-1)
    case("split", "rest", lambda x, size, dim: x.split(size, dim), [real(2, 7)], size=3, dim=1)
    case("chunk", "uneven", lambda x, n, dim: x.chunk(n, dim), [real(7, 2)], n=3, dim=0)
    case("contiguous", "transposed", lambda x: x.contiguous(), [x])
    case("clone", "plain", lambda x: x.clone(), [x])
    case("to", "f16", lambda x, f64: x.to(torch.float64 if f64 else torch.float16), [real(40)], autocast=False, f64=0)
    case("to", "f64", lambda x, f64: x.to(torch.float64 if f64 else torch.float16), [real(40)], autocast=False, f64=1)
    case("copy_", "broadcast", lambda d, s: d.clone().copy_(s),
         [real(3, 4, needs=False), real(4, needs=False)])
    case("fill_", "value", lambda d, value: d.clone().fill_(value), [real(3, 4, needs=False)], value=0.3)


def elementwise_cases():
    a, b = real(6, 20), away(6, 20)
    wide_a, wide_b = real(3, 1, 5), away(4, 5)
    for name, fn in (("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)):
        case(name, "same", fn, [a, b])
        case(name, "broadcast", fn, [wide_a, wide_b], autocast=False)
        case(name, "scalar tensor", fn, [real(20), away()])
    case("affine", "plain", lambda x, scale, shift: x * scale + shift, [a], scale=1.7, shift=-0.3)
    case("add_scalar", "plain", lambda x, v: x + v, [a], v=0.1)
    case("mul_scalar", "plain", lambda x, v: x * v, [a], v=-1.3)
    case("neg", "plain", torch.neg, [a])
    case("exp", "spread", torch.exp, [spread(120, lo=-9, hi=9)])
    case("log", "spread", torch.log, [positive(120, lo=0.01, hi=30)])
    case("sqrt", "spread", torch.sqrt, [positive(120, lo=0.01, hi=30)])
    case("tanh", "spread", torch.tanh, [spread(120, lo=-6, hi=6)])
    case("sigmoid", "spread", torch.sigmoid, [spread(120, lo=-12, hi=12)])
    case("relu", "signs", torch.relu, [real(120)])
    case("relu", "zeros", torch.relu, [given([0.0, -0.0, 1.0, -1.0, 3e-5])])
    case("gelu", "erf", lambda x, tanh_form: F.gelu(x, approximate="tanh" if tanh_form else "none"),
         [spread(120, lo=-5, hi=5)], tanh_form=0)
    case("gelu", "tanh", lambda x, tanh_form: F.gelu(x, approximate="tanh" if tanh_form else "none"),
         [spread(120, lo=-5, hi=5)], tanh_form=1)
    case("where", "broadcast", torch.where, [flags(3, 4), real(3, 4), real(4)])
    # By domain: everywhere, above 0, within (-1, 1).
    everywhere = {"expm1": torch.expm1, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh,
                  "cosh": torch.cosh, "erf": torch.erf, "abs": torch.abs, "sign": torch.sign, "silu": F.silu,
                  "hardswish": F.hardswish}
    above = {"log2": torch.log2, "log10": torch.log10, "rsqrt": torch.rsqrt}
    within = {"asin": torch.asin, "acos": torch.acos, "erfinv": torch.erfinv, "log1p": torch.log1p}
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, 0.5, -0.5, 1e-30, -1e-30, 1e-40, 100.25]
    for name, fn in everywhere.items():
        case(name, "spread", fn, [spread(80, lo=-5, hi=5)])
    for name, fn in above.items():
        case(name, "spread", fn, [positive(80, lo=0.02, hi=20)])
    for name, fn in within.items():
        case(name, "spread", fn, [spread(80, lo=-0.98, hi=0.98)])
    case("reciprocal", "spread", torch.reciprocal, [away(80, lo=0.05, hi=8)])
    plain = {"exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "tanh": torch.tanh, "sigmoid": torch.sigmoid,
             "relu": torch.relu, "reciprocal": torch.reciprocal}
    for name, fn in {**everywhere, **above, **within, **plain}.items():
        # At infinity silu's gradient and hardswish are torch's infinity times 0, Lockstep's limit.
        numbers = [v for v in special if not math.isinf(v)] if name in ("silu", "hardswish") else special
        case(name, "special", fn, [given(numbers)], autocast=False)
    for name in ("sin", "cos", "tan"):
        case(name, "large", everywhere[name], [given([1e3, -3e4, 1e5, 1.5e6, 1e8, -1e15, 1e30])], autocast=False)
    one_number = {
        "leaky_relu": (lambda x, slope: F.leaky_relu(x, slope), dict(slope=0.02)),
        "elu": (lambda x, alpha: F.elu(x, alpha), dict(alpha=1.3)),
        "softplus": (lambda x, beta, threshold: F.softplus(x, beta, threshold), dict(beta=1.5, threshold=6.0)),
        "clamp": (lambda x, min, max: torch.clamp(x, min, max), dict(min=-1.0, max=1.5)),
        "rpow": (lambda x, base: torch.pow(base, x), dict(base=1.7)),
    }
    for name, (fn, args) in one_number.items():
        case(name, "spread", fn, [spread(80, lo=-5, hi=5)], rule={"rpow": "pow"}.get(name), **args)
        if name == "clamp":  # not at the bounds themselves: whether the gradient there is 0 or 1 depends on the version
            args = dict(min=-0.9, max=1.6)
        case(name, "special", fn, [given(special)], autocast=False, **args)
    case("rdiv", "plain", lambda x, v: v / x, [away(80, lo=0.1)], rule="reciprocal", v=2.3)
    for exponent in (0.0, 0.5, 1.0, 2.0, 3.0, -1.0, 2.7):
        case("pow_scalar", f"to the {exponent}", lambda x, exponent: torch.pow(x, exponent),
             [positive(40, lo=0.1, hi=5)], autocast=exponent == 2.7, rule="pow", exponent=exponent)
    case("pow_scalar", "negative", lambda x, exponent: torch.pow(x, exponent), [away(40, lo=0.1, hi=5)],
         autocast=False, exponent=3.0)
    case("pow_scalar", "special", lambda x, exponent: torch.pow(x, exponent), [given(special)], autocast=False,
         exponent=2.0)
    case("fake_quantize_per_tensor_affine", "8 bits", lambda x, scale, zero, min, max:
         torch.fake_quantize_per_tensor_affine(x, scale, zero, min, max), [spread(6, 9)], scale=0.03125, zero=3,
         min=-64, max=63)
    case("pow", "positive", torch.pow, [positive(8, 10), real(10)])
    case("pow", "zero", torch.pow, [given([0.0, 0.0, 0.0, 2.0, -2.0]), given([0.0, 2.0, 0.5, 0.0, 3.0])],
         autocast=False)
    case("prelu", "channels", lambda x, w: F.prelu(x, w), [real(2, 5, 6), real(5)])
    case("prelu", "one", lambda x, w: F.prelu(x, w), [real(20), real(1)], autocast=False)
    pair = [given([1, 2, 2, -0.0, 0.0, math.nan, 5, math.inf, -3]),
            given([2, 2, 1, 0.0, 0.0, 1, math.nan, math.inf, -4])]
    for name, fn in (("maximum", torch.maximum), ("minimum", torch.minimum)):
        case(name, "broadcast", fn, [real(4, 1, 6), real(5, 6)])
        case(name, "ties", fn, pair, autocast=False)
    case("atan2", "quadrants", torch.atan2, [real(60), real(60)])
    for name in ("addcmul", "addcdiv"):
        def fn(x, a, b, value, name=name):
            return getattr(torch, name)(x, a, b, value=value)
        case(name, "broadcast", fn, [real(6, 10), real(6, 10), away(10)], value=0.7)

    ties = [given([1, 2, 2, -0.0, 0.0, float("nan"), 5, float("inf")], needs=False),
            given([2, 2, 1, 0.0, -0.0, float("nan"), float("nan"), float("inf")], needs=False)]
    for name, fn in (("eq", torch.eq), ("ne", torch.ne), ("lt", torch.lt), ("le", torch.le), ("gt", torch.gt),
                     ("ge", torch.ge)):
        case(name, "ties", fn, ties)


def reduction_cases():
    x = real(4, 5, 6)
    for name in ("sum", "mean"):
        def fn(x, dims, keepdim, name=name):
            return getattr(torch, name)(x, dims, keepdim=bool(keepdim)) if dims else getattr(torch, name)(x)
        case(name, "all", fn, [x], dims=[], keepdim=0)
        case(name, "inner", fn, [real(3, 100)], autocast=False, dims=[-1], keepdim=1)
        case(name, "outer", fn, [x], dims=[0, 2], keepdim=0)
    case("max", "middle", lambda x, dim, keepdim: torch.max(x, dim, bool(keepdim)), [apart(4, 7, 3)], dim=1, keepdim=1)
    case("max", "ties", lambda x, dim, keepdim: torch.max(x, dim, bool(keepdim)),
         [given([[1, 3, 3, 2], [0, 0, 0, 0]])], dim=-1, keepdim=0)
    case("max_all", "apart", torch.max, [apart(5, 6)])
    case("argmax", "last", lambda x, dim, keepdim: torch.argmax(x, dim, bool(keepdim)), [apart(4, 7, needs=False)],
         dim=-1, keepdim=0)

    def reduced(name, f):
        return lambda x, dims, keepdim, **args: f(x, dims if dims else list(range(x.dim())), bool(keepdim), **args)
    many = {"amax": (torch.amax, {}), "amin": (torch.amin, {}), "logsumexp": (torch.logsumexp, {}),
            "var": (lambda x, d, k, correction: torch.var(x, d, correction=correction, keepdim=k),
                    dict(correction=1.0)),
            "std": (lambda x, d, k, correction: torch.std(x, d, correction=correction, keepdim=k),
                    dict(correction=0.0)),
            "norm": (lambda x, d, k, p: torch.linalg.vector_norm(x, p, d, k), dict(p=2.0))}
    for name, (f, args) in many.items():
        source = apart if name in ("amax", "amin") else real
        case(name, "inner", reduced(name, f), [source(6, 15)], dims=[-1], keepdim=1, **args)
        case(name, "outer", reduced(name, f), [source(4, 3, 5)], autocast=False, dims=[0, 2], keepdim=0, **args)
        case(name, "all", reduced(name, f), [source(5, 7)], autocast=False, dims=[], keepdim=0, **args)
    case("amax", "ties", reduced("amax", torch.amax), [given([[1, 3, 3, 2], [0, 0, 0, 0]])], autocast=False, dims=[1],
         keepdim=0)
    case("var", "far from 0", reduced("var", many["var"][0]), [given(1000 + np.arange(40).reshape(4, 10) % 7)],
         autocast=False, dims=[1], keepdim=0, correction=1.0)
    case("logsumexp", "large", reduced("logsumexp", torch.logsumexp),
         [given([[1000, 1001.5, 999], [-1000, -1002, -1001]])], autocast=False, dims=[1], keepdim=0)
    for p in (0.0, 1.0, 3.0, math.inf, -math.inf, 0.5):
        case("norm", f"order {p}", reduced("norm", many["norm"][0]), [away(4, 9, needs=p != 0)], autocast=False,
             dims=[1], keepdim=0, p=p)
    case("prod", "middle", lambda x, dims, keepdim: torch.prod(x, dims[0], bool(keepdim)),
         [away(4, 6, 3, lo=0.5, hi=2)], dims=[1], keepdim=1)
    case("prod", "all", lambda x, dims, keepdim: torch.prod(x), [away(4, 5, lo=0.5, hi=2)], autocast=False, dims=[],
         keepdim=0)
    case("prod", "zeros", lambda x, dims, keepdim: torch.prod(x, 1),
         [given([[1, 0, 2, 3], [0, 2, 0, 1], [1, 2, 3, 4]])], autocast=False, dims=[1], keepdim=0)
    case("min", "middle", lambda x, dim, keepdim: torch.min(x, dim, bool(keepdim)), [apart(4, 7, 3)], dim=1, keepdim=1)
    case("min", "ties", lambda x, dim, keepdim: torch.min(x, dim, bool(keepdim)),
         [given([[3, 1, 1, 2], [0, 0, 0, math.nan]])], autocast=False, dim=-1, keepdim=0)
    case("min_all", "apart", torch.min, [apart(5, 6)])
    case("argmin", "first", lambda x, dim, keepdim: torch.argmin(x, dim, bool(keepdim)), [apart(4, 7, needs=False)],
         dim=0, keepdim=1)
    truth = given([[0, 0, 0], [1, 0, math.nan], [2, 3, 4]], needs=False)
    for name, fn in (("all", torch.all), ("any", torch.any)):
        case(name, "rows", lambda x, dims, keepdim, fn=fn: fn(x, dims[0], bool(keepdim)), [truth], autocast=False,
             dims=[1], keepdim=0)
        case(name, "whole", lambda x, dims, keepdim, fn=fn: fn(x), [truth], autocast=False, dims=[], keepdim=0)
    case("dist", "order 2", lambda a, b, p: torch.dist(a, b, p), [real(5, 8), real(8)], p=2.0)
    case("dist", "order 3", lambda a, b, p: torch.dist(a, b, p), [real(5, 8), real(5, 8)], autocast=False, p=3.0)
    case("normalize", "rows", lambda x, p, dim, eps: F.normalize(x, p, dim, eps), [real(5, 9)], p=2.0, dim=1, eps=1e-12)
    case("cosine_similarity", "rows", lambda a, b, dim, eps: F.cosine_similarity(a, b, dim, eps),
         [real(5, 9), real(5, 9)], dim=1, eps=1e-8)
    case("renorm", "rows", lambda x, p, dim, max: torch.renorm(x, p, dim, max), [real(5, 6)], p=2.0, dim=0, max=2.25)
    case("cumsum", "middle", lambda x, dim: torch.cumsum(x, dim), [real(3, 14, 2)], dim=1)
    case("cumprod", "last", lambda x, dim: torch.cumprod(x, dim), [away(5, 8, lo=0.5, hi=2)], dim=-1)
    case("cumprod", "zeros", lambda x, dim: torch.cumprod(x, dim), [given([[1, 0, 2, 3], [0, 2, 0, 1], [1, 2, 3, 4]])],
         autocast=False, dim=1)

    def recurrence(a, b, dim, reverse):
        y, last = [], 0
        steps = list(zip(a.unbind(dim), b.unbind(dim)))
        for ak, bk in steps[::-1] if reverse else steps:
            last = bk + ak * last
            y.append(last)
        return torch.stack(y[::-1] if reverse else y, dim)
    for reverse in (0, 1):
        case("recurrence", f"reverse {reverse}", recurrence, [real(3, 9, 2, scale=0.7), real(3, 9, 2)], autocast=False,
             dim=1, reverse=reverse)


def product_cases():
    case("matmul", "2-D", torch.matmul, [real(13, 40), real(40, 9)])
    case("matmul", "dot", torch.matmul, [real(150), real(150)])
    case("matmul", "vector", torch.matmul, [real(6, 20), real(20)])
    case("matmul", "batch", torch.matmul, [real(2, 1, 5, 8), real(3, 8, 4)])
    case("linear", "bias", F.linear, [real(2, 5, 40), real(7, 40, scale=0.2), real(7)])
    case("linear", "none", F.linear, [real(9, 30), real(6, 30, scale=0.2)])
    for name, fn in (("mm", torch.mm), ("mv", torch.mv), ("dot", torch.dot), ("outer", torch.outer)):
        shapes = {"mm": ((7, 20), (20, 5)), "mv": ((9, 20), (20,)), "dot": ((60,), (60,)), "outer": ((9,), (7,))}[name]
        case(name, "plain", fn, [real(*shapes[0]), real(*shapes[1])])
    case("bmm", "plain", torch.bmm, [real(3, 5, 9), real(3, 9, 4)])
    for name, c, a, b in (("addmm", (5, 4), (5, 12), (12, 4)), ("baddbmm", (2, 5, 4), (2, 5, 9), (2, 9, 4)),
                          ("addbmm", (5, 4), (3, 5, 6), (3, 6, 4)), ("addmv", (6,), (6, 12), (12,)),
                          ("addr", (6, 5), (6,), (5,))):
        def fn(c, a, b, beta, alpha, name=name):
            return getattr(torch, name)(c, a, b, beta=beta, alpha=alpha)
        case(name, "scaled", fn, [real(*c), real(*a), real(*b)], beta=0.5, alpha=1.25)
        case(name, "broadcast", fn, [real(c[-1]), real(*a), real(*b)], autocast=False, beta=1.0, alpha=1.0)
    case("linalg_vecdot", "middle", lambda a, b, dim: torch.linalg.vecdot(a, b, dim=dim), [real(3, 9, 4), real(9, 4)],
         dim=1)
    case("bilinear", "bias", F.bilinear, [real(6, 5), real(6, 4), real(3, 5, 4, scale=0.3), real(3)])
    case("multi_dot", "vector", lambda *x: torch.linalg.multi_dot(x),
         [real(6), real(6, 9), real(9, 3), real(3, 7)], rule="multi_dot")
    case("chain_matmul", "three", lambda *x: torch.linalg.multi_dot(x), [real(6, 9), real(9, 3), real(3, 7)])
    case("tensordot", "pairs", lambda a, b, dims_a, dims_b: torch.tensordot(a, b, (dims_a, dims_b)),
         [real(3, 4, 5), real(5, 2, 4)], dims_a=[1, 2], dims_b=[2, 0])
    # equations stand in test_golden.c in this order
    for k, (equation, shapes) in enumerate([("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("iij->j", [(3, 3, 4)]),
                                            ("ab,cb,db", [(3, 4), (2, 4), (5, 4)]),
                                            ("...i,ji->...j", [(2, 3, 4), (5, 4)]), ("i,j->ji", [(3,), (4,)])]):
        case("einsum", f"equation {k}", lambda *x, equation, e=equation: torch.einsum(e, *x),
             [real(*s) for s in shapes], autocast=k == 0, equation=k)


def convolution_cases():
    def conv(x, w, *b, stride, padding, dilation, groups):
        return F.conv2d(x, w, b[0] if b else None, stride, padding, dilation, groups)
    case("conv2d", "3x3", conv, [real(2, 4, 7, 6), real(6, 4, 3, 3, scale=0.2), real(6)], stride=[1, 1], padding=[1, 1],
         dilation=[1, 1], groups=1)
    case("conv2d", "groups", conv, [real(2, 4, 9, 7), real(6, 2, 3, 2, scale=0.3), real(6)], stride=[2, 1],
         autocast=False, padding=[1, 2], dilation=[1, 2], groups=2)
    case("conv2d", "pointwise", conv, [real(2, 12, 4, 4), real(5, 12, 1, 1, scale=0.3)], stride=[1, 1], padding=[0, 0],
         dilation=[1, 1], groups=1)
    case("conv2d", "depthwise", conv, [real(1, 6, 8, 8), real(6, 1, 3, 3, scale=0.3), real(6)], stride=[1, 1],
         autocast=False, padding=[1, 1], dilation=[1, 1], groups=6)
    case("max_pool2d", "overlap", lambda x, kernel, stride, padding: F.max_pool2d(x, kernel, stride, padding),
         [apart(2, 2, 7, 8)], kernel=[3, 2], stride=[2, 1], padding=[1, 0])
    x = {1: (2, 4, 9), 2: (2, 3, 6, 5), 3: (1, 3, 4, 5, 4)}
    for n in (1, 3):
        def conv_n(x, w, b, stride, padding, dilation, groups, n=n):
            return getattr(F, f"conv{n}d")(x, w, b, stride, padding, dilation, groups)
        case(f"conv{n}d", "plain", conv_n, [real(*x[n]), real(4, x[n][1], *[3, 2, 2][:n], scale=0.3), real(4)],
             stride=[2, 1, 1][:n], padding=[1] * n, dilation=[1, 1, 2][-n:], groups=1)
    case("conv1d", "groups", lambda x, w, stride, padding, dilation, groups:
         F.conv1d(x, w, None, stride, padding, dilation, groups), [real(2, 4, 9), real(6, 2, 3, scale=0.3)],
         autocast=False, stride=[1], padding=[2], dilation=[2], groups=2)
    for n in (1, 2, 3):
        def transposed(x, w, b, stride, padding, output_padding, groups, dilation, n=n):
            return getattr(F, f"conv_transpose{n}d")(x, w, b, stride, padding, output_padding, groups, dilation)
        shape = {1: (2, 4, 6), 2: (2, 4, 4, 3), 3: (1, 2, 3, 3, 2)}[n]
        groups = 2 if n < 3 else 1
        case(f"conv_transpose{n}d", "plain", transposed,
             [real(*shape), real(shape[1], 3, *[3, 2, 2][:n], scale=0.3), real(3 * groups)], stride=[2, 1, 2][:n],
             padding=[1, 0, 1][:n], output_padding=[1, 0, 0][:n], groups=groups, dilation=[1, 2, 1][:n])
    case("conv_tbc", "plain", lambda x, w, b, padding: torch.conv_tbc(x, w, b, padding),
         [real(7, 2, 4), real(3, 4, 5, scale=0.3), real(5)], padding=1)
    planes = {1: (2, 2, 9), 2: (2, 2, 6, 7), 3: (1, 2, 4, 5, 5)}
    for n in (1, 2, 3):
        def max_pool(x, kernel, stride, padding, dilation, ceil_mode, n=n):
            return getattr(F, f"max_pool{n}d")(x, kernel, stride, padding, dilation, bool(ceil_mode), True)

        def avg_pool(x, kernel, stride, padding, ceil_mode, count_include_pad, n=n):
            return getattr(F, f"avg_pool{n}d")(x, kernel, stride, padding, bool(ceil_mode), bool(count_include_pad))

        def adaptive_max(x, size, n=n):
            return getattr(F, f"adaptive_max_pool{n}d")(x, size, True)

        def unpool(x, i, size, n=n):
            return getattr(F, f"max_unpool{n}d")(x, i, 2, 2, 0, [*x.shape[:2], *size])
        plane, what = planes[n], f"{n} dims"
        case("max_pool", what, max_pool, [apart(*plane)], rule=f"max_pool{n}d", kernel=[3, 2, 2][:n],
             stride=[2, 1, 2][:n], padding=[1, 1, 0][:n], dilation=[1, 2, 1][:n], ceil_mode=n % 2)
        case("avg_pool", what, avg_pool, [real(*plane)], rule=f"avg_pool{n}d", kernel=[3, 2, 2][:n],
             stride=[2, 1, 2][:n], padding=[1, 1, 0][:n], ceil_mode=n % 2, count_include_pad=n // 2)
        case("adaptive_avg_pool", what, lambda x, size, n=n: getattr(F, f"adaptive_avg_pool{n}d")(x, size),
             [real(*plane)], rule=f"adaptive_avg_pool{n}d", size=[4, 3, 2][:n])
        case("adaptive_max_pool", what, adaptive_max, [apart(*plane)], rule=f"adaptive_max_pool{n}d",
             size=[4, 3, 2][:n])
        r = np.random.default_rng(n)
        size = [8, 6, 5][:n]
        places = np.stack([r.permutation(int(np.prod(size)))[: 4 * 3 ** (n - 1)] for _ in range(4)])
        small = (2, 2, 4, 3, 3)[: n + 2]
        case("max_unpool", what, unpool, [real(*small), given(places.reshape(small), dtype=np.int64)],
             rule=f"max_unpool{n}d", size=size)
    for n in (1, 2, 3):
        for kind in ("reflection", "replication"):
            def edge_pad(x, before, after, mode={"reflection": "reflect", "replication": "replicate"}[kind]):
                return F.pad(x, [v for pair in zip(before[::-1], after[::-1]) for v in pair], mode)
            case(f"{kind}_pad", f"{n} dims", edge_pad, [real(*planes[n])], autocast=n < 3, rule=f"{kind}_pad{n}d",
                 before=[1, 2, 0][:n], after=[2, 0, 3][:n])
    modes, paddings = ["bilinear", "nearest", "bicubic"], ["zeros", "border", "reflection"]

    def grid_sample(x, grid, mode, padding, align_corners):
        return F.grid_sample(x, grid, modes[mode], paddings[padding], bool(align_corners))
    for mode, padding, corners in ((0, 0, 0), (0, 1, 1), (0, 2, 0), (1, 0, 1), (2, 0, 0), (2, 2, 1)):
        case("grid_sample", f"{modes[mode]} {paddings[padding]}", grid_sample,
             [real(2, 2, 5, 6), spread(2, 3, 4, 2, lo=-1.4, hi=1.4)], autocast=mode + padding == 0, mode=mode,
             padding=padding, align_corners=corners)
    case("grid_sample", "3 dims", grid_sample, [real(1, 2, 3, 4, 5), spread(1, 2, 3, 2, 3, lo=-1.3, hi=1.3)],
         autocast=False, mode=0, padding=0, align_corners=0)
    for n in (2, 3):
        def fractional(x, samples, kernel, size, n=n):
            return getattr(F, f"fractional_max_pool{n}d")(x, kernel, size, _random_samples=samples,
                                                          return_indices=True)
        r = np.random.default_rng(n)
        case("fractional_max_pool", f"{n} dims", fractional,
             [apart(*planes[n]), given(rounded(r.uniform(size=(*planes[n][:2], n))), needs=False)],
             rule=f"fractional_max_pool{n}d", kernel=[2] * n, size=[2, 3, 3][:n])


def norm_cases():
    case("layer_norm", "rows", lambda x, w, b, ndims, eps: F.layer_norm(x, x.shape[-ndims:], w, b, eps),
         [real(9, 32), real(32, wide=True), real(32, wide=True)], ndims=1, eps=1e-5)
    case("layer_norm", "two dims", lambda x, w, b, ndims, eps: F.layer_norm(x, x.shape[-ndims:], w, b, eps),
         [real(3, 4, 10), real(4, 10, wide=True), real(4, 10, wide=True)], autocast=False, ndims=2, eps=1e-3)
    def rms_norm(x, *w, ndims, eps):
        return F.rms_norm(x, x.shape[-ndims:], w[0] if w else None, eps if eps >= 0 else None)
    case("rms_norm", "rows", rms_norm, [real(7, 24), real(24, wide=True)], ndims=1, eps=1e-5)
    case("rms_norm", "bare", rms_norm, [real(3, 4, 5)], autocast=False, ndims=2, eps=-1.0)
    case("group_norm", "images", lambda x, w, b, groups, eps: F.group_norm(x, groups, w, b, eps),
         [real(2, 6, 3, 4), real(6, wide=True), real(6, wide=True)], groups=3, eps=1e-5)
    case("group_norm", "rows", lambda x, groups, eps: F.group_norm(x, groups, None, None, eps), [real(4, 12)],
         autocast=False, groups=2, eps=1e-3)
    case("layer_norm", "bare", lambda x, ndims, eps: F.layer_norm(x, x.shape[-ndims:], None, None, eps), [real(5, 20)],
         autocast=False, ndims=1, eps=1e-5)

    def batch_norm(x, w, b, mean, var, training, momentum, eps):
        mean, var = mean.clone(), var.clone()
        y = F.batch_norm(x, mean, var, w, b, bool(training), momentum, eps)
        return (y, mean, var) if training else y
    bn = [real(4, 5, 3, 4), real(5, wide=True), real(5, wide=True), real(5, needs=False, wide=True),
          positive(5, needs=False, wide=True)]
    case("batch_norm", "training", batch_norm, bn, training=1, momentum=0.1, eps=1e-5)
    case("sync_batch_norm", "one rank", batch_norm, bn, training=1, momentum=0.1, eps=1e-5)
    case("batch_norm", "evaluation", batch_norm, bn, training=0, momentum=0.1, eps=1e-5)


def softmax_cases():
    for name, fn in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        case(name, "last", lambda x, dim, fn=fn: fn(x, dim), [real(6, 40, scale=2)], dim=-1)
        case(name, "middle", lambda x, dim, fn=fn: fn(x, dim), [real(3, 9, 4, scale=2)], autocast=False, dim=1)
    case("softmin", "columns", lambda x, dim: F.softmin(x, dim), [spread(9, 6)], dim=0)


def loss_cases():
    reductions = ["none", "mean", "sum"]

    def ce(x, t, ignore, smoothing, reduction):
        return F.cross_entropy(x, t, ignore_index=ignore, label_smoothing=smoothing, reduction=reductions[reduction])
    case("cross_entropy", "mean", ce, [real(12, 20, scale=2), index(12, below=20)], ignore=-100, smoothing=0.0,
         reduction=1)
    case("cross_entropy", "smoothed", ce, [real(12, 20, scale=2), index(12, below=20)], ignore=3, smoothing=0.1,
         reduction=1)
    case("cross_entropy", "none", ce, [real(3, 10, 4, scale=2), index(3, 4, below=10)], ignore=-100, smoothing=0.0,
         reduction=0)
    case("cross_entropy", "sum", ce, [real(3, 10, 4, scale=2), index(3, 4, below=10)], ignore=2, smoothing=0.2,
         reduction=2)
    x, reduced = real(6, 9), dict(reduction=1)
    weight = positive(9, lo=0.5, hi=2, needs=False)
    shares = np.random.default_rng(1).dirichlet(np.ones(9), 6)

    def weighted(x, t, w, ignore, smoothing, reduction):
        return F.cross_entropy(x, t, w, ignore_index=ignore, label_smoothing=smoothing,
                               reduction=reductions[reduction])
    case("cross_entropy_weighted", "classes", weighted, [x, index(6, below=9), weight], ignore=2, smoothing=0.1,
         reduction=1)
    case("cross_entropy_weighted", "probabilities", weighted, [x, given(rounded(shares)), weight], ignore=-100,
         smoothing=0.2, reduction=1)
    case("cross_entropy_weighted", "no weight", ce, [x, given(rounded(shares))], ignore=-100, smoothing=0.0,
         reduction=0)

    def nll(x, t, *w, ignore, reduction):
        return F.nll_loss(x, t, w[0] if w else None, ignore_index=ignore, reduction=reductions[reduction])
    case("nll_loss", "weighted", nll, [x, index(6, below=9), weight], ignore=1, reduction=1)
    case("nll_loss", "images", nll, [real(2, 5, 3, 2), index(2, 3, 2, below=5)], ignore=-100, reduction=0)

    t = real(6, 9)
    chance = positive(6, 9, lo=0.02, hi=0.98)
    sign = given(np.random.default_rng(7).choice([-1, 1], (6, 9)), needs=False)
    simple = {
        "mse_loss": (F.mse_loss, [x, t], {}), "l1_loss": (F.l1_loss, [x, t], {}),
        "smooth_l1_loss": (lambda x, t, beta, reduction: F.smooth_l1_loss(x, t, reduction=reduction, beta=beta), [x, t],
                           dict(beta=0.7)),
        "huber_loss": (lambda x, t, delta, reduction: F.huber_loss(x, t, reduction=reduction, delta=delta), [x, t],
                       dict(delta=0.8)),
        "soft_margin_loss": (F.soft_margin_loss, [x, sign], {}),
        "hinge_embedding_loss": (F.hinge_embedding_loss, [x, sign], dict(margin=0.75)),
        "poisson_nll_loss": (lambda x, t, log_input, full, eps, reduction:
                             F.poisson_nll_loss(x, t, bool(log_input), bool(full), eps=eps, reduction=reduction),
                             [x, positive(6, 9, lo=0.2, hi=5, needs=False)], dict(log_input=1, full=1, eps=1e-8)),
        "kl_div": (lambda x, t, log_target, reduction:
                   F.kl_div(x, t, reduction=reduction, log_target=bool(log_target)),
                   [spread(6, 9, lo=-4, hi=-0.25), positive(6, 9, lo=0.05, hi=0.9)], dict(log_target=0)),
        "margin_ranking_loss": (F.margin_ranking_loss, [x, t, sign], dict(margin=0.25)),
        "binary_cross_entropy": (lambda x, t, w, reduction: F.binary_cross_entropy(x, t, w, reduction=reduction),
                                 [chance, positive(6, 9, lo=0.02, hi=0.98),
                                  positive(6, 9, lo=0.5, hi=2, needs=False)], {}),
        "binary_cross_entropy_with_logits":
            (lambda x, t, w, p, reduction:
             F.binary_cross_entropy_with_logits(x, t, w, reduction=reduction, pos_weight=p),
             [real(6, 9, scale=3), positive(6, 9, lo=0.02, hi=0.98), positive(6, 9, lo=0.5, hi=2, needs=False),
              positive(9, lo=0.5, hi=2, needs=False)], {}),
    }
    for name, (f, inputs, args) in simple.items():
        def fn(*x, reduction, f=f, **args):
            return f(*x, reduction=(reductions + ["batchmean"])[reduction], **args)
        case(name, "mean", fn, inputs, **args, reduction=1)
        case(name, "none", fn, inputs, autocast=False, **args, reduction=0)
    case("kl_div", "logarithms", lambda x, t, log_target, reduction:
         F.kl_div(x, t, reduction="batchmean", log_target=True),
         [spread(6, 9, lo=-4, hi=-0.25), spread(6, 9, lo=-4, hi=-0.25)], autocast=False, log_target=1, reduction=3)
    case("poisson_nll_loss", "plain", lambda x, t, log_input, full, eps, reduction:
         F.poisson_nll_loss(x, t, False, False, eps=eps, reduction="sum"), [positive(6, 9), positive(6, 9)],
         autocast=False, log_input=0, full=0, eps=1e-6, reduction=2)
    case("smooth_l1_loss", "beta 0", lambda x, t, beta, reduction: F.smooth_l1_loss(x, t, beta=beta), [x, t],
         autocast=False, beta=0.0, reduction=1)
    case("multi_margin_loss", "weighted", lambda x, t, w, p, margin, reduction:
         F.multi_margin_loss(x, t, p, margin, w, reduction=reductions[reduction]), [x, index(6, below=9), weight], p=2,
         margin=0.75, **reduced)
    lists = np.full((4, 7), -1)
    for i in range(4):
        lists[i, : i + 1] = np.random.default_rng(i).permutation(7)[: i + 1]
    case("multilabel_margin_loss", "lists", lambda x, t, reduction:
         F.multilabel_margin_loss(x, t, reduction=reductions[reduction]), [real(4, 7), given(lists, dtype=np.int64)],
         **reduced)
    signs = given(np.array([1.0, -1, 1, -1, -1, 1]), needs=False)
    case("cosine_embedding_loss", "both signs", lambda a, b, t, margin, reduction:
         F.cosine_embedding_loss(a, b, t, margin, reduction=reductions[reduction]), [x, t, signs], margin=-0.5,
         **reduced)
    case("triplet_margin_loss", "swap", lambda a, p, n, margin, norm, eps, swap, reduction:
         F.triplet_margin_loss(a, p, n, margin, norm, eps, bool(swap), reduction=reductions[reduction]),
         [x, t, real(6, 9)], margin=1.5, norm=2.0, eps=1e-6, swap=1, **reduced)

    def ctc(x, t, n, m, blank, zero_infinity, reduction):
        return F.ctc_loss(F.log_softmax(x, 2), t, n, m, blank, reductions[reduction], bool(zero_infinity))
    case("ctc_loss", "of log_softmax", ctc,
         [real(8, 3, 5), given(np.array([[1, 2, 2], [3, 1, 4], [4, 4, 4]]), dtype=np.int64),
          given(np.array([8, 7, 5]), dtype=np.int64), given(np.array([3, 2, 1]), dtype=np.int64)], autocast=False,
         blank=0, zero_infinity=0, **reduced)


def index_cases():
    case("embedding", "repeated", lambda w, i: F.embedding(i, w), [real(9, 6), index(3, 8, below=9)])
    case("cat", "three", lambda a, b, c, dim: torch.cat([a, b, c], dim), [real(2, 3), real(2, 1), real(2, 4)], dim=1)
    case("stack", "three", lambda *x, dim: torch.stack(x, dim), [real(2, 5), real(2, 5), real(2, 5)], dim=1)
    case("split_sizes", "uneven", lambda x, sizes, dim: x.split(sizes, dim), [real(2, 7)], sizes=[4, 1, 2], dim=1)
    x = real(4, 5, 3)
    places = index(4, 2, 3, below=5)
    case("gather", "middle", lambda x, i, dim: torch.gather(x, dim, i), [x, places], dim=1)
    case("take_along_dim", "broadcast", lambda x, i, dim: torch.take_along_dim(x, i, dim), [x, index(1, 2, 3, below=5)],
         dim=1)
    apart_places = given(np.stack([np.random.default_rng(i).permutation(5)[:2] for i in range(12)])
                         .reshape(4, 3, 2).transpose(0, 2, 1), dtype=np.int64)
    case("scatter", "middle", lambda x, i, v, dim: torch.scatter(x, dim, i, v), [x, apart_places, real(4, 2, 3)], dim=1)
    case("scatter_value", "middle", lambda x, i, dim, value: torch.scatter(x, dim, i, value), [x, apart_places], dim=1,
         value=0.75)
    case("scatter_add", "middle", lambda x, i, v, dim: torch.scatter_add(x, dim, i, v), [x, places, real(4, 2, 3)],
         dim=1)
    case("index_select", "repeated", lambda x, i, dim: torch.index_select(x, dim, i), [x, index(7, below=5)], dim=1)
    case("index_add", "repeated", lambda x, i, v, dim, alpha: torch.index_add(x, dim, i, v, alpha=alpha),
         [x, index(7, below=5), real(4, 7, 3)], dim=1, alpha=-0.5)
    case("index_copy", "apart", lambda x, i, v, dim: torch.index_copy(x, dim, i, v),
         [x, given([3, 0], dtype=np.int64), real(4, 2, 3)], dim=1)
    case("index", "two dims", lambda x, i, j, skip: x[i, j] if not skip else x[:, i, j],
         [x, index(6, below=4), index(6, below=5)], skip=0)
    case("index", "from the end", lambda x, i, j, skip: x[i, j] if not skip else x[:, i, j],
         [x, given([[0, -1], [4, -5]], dtype=np.int64), given([-3, 1], dtype=np.int64)], autocast=False, skip=1)
    for accumulate in (0, 1):
        case("index_put", f"accumulate {accumulate}", lambda x, i, j, v, accumulate:
             torch.index_put(x, (i, j), v, bool(accumulate)),
             [x, given([0, 3, 1, accumulate], dtype=np.int64), given([2, 4, 0, 0], dtype=np.int64), real(4, 3)],
             accumulate=accumulate)
    case("one_hot", "rows", lambda i, classes: F.one_hot(i, classes), [index(2, 4, below=5)], autocast=False, classes=5)
    case("masked_fill", "broadcast", lambda x, m, value: torch.masked_fill(x, m, value), [x, flags(5, 3)], value=-2.5)
    case("where_scalar", "broadcast", lambda c, a, b: torch.where(c, a, b), [flags(4, 1, 3), x], b=0.75)
    case("pad", "both ends", lambda x, pads, value: F.pad(x, pads, value=value), [x], pads=[1, 2, -1, 1], value=0.25)
    case("triu", "above", lambda x, diagonal: torch.triu(x, diagonal), [real(2, 5, 4)], diagonal=1)
    case("tril", "below", lambda x, diagonal: torch.tril(x, diagonal), [real(2, 4, 5)], diagonal=-1)
    case("diagonal", "outer dims", lambda x, offset, d0, d1: torch.diagonal(x, offset, d0, d1), [real(4, 2, 5)],
         offset=1, d0=0, d1=2)
    case("diag_embed", "shifted", lambda x, offset, d0, d1: torch.diag_embed(x, offset, d0, d1), [real(2, 4)],
         offset=-1, d0=0, d1=2)
    case("diag", "vector", lambda x, offset: torch.diag(x, offset), [real(5)], offset=1)
    case("diag", "matrix", lambda x, offset: torch.diag(x, offset), [real(5, 4)], offset=-1)
    case("trace", "wide", torch.trace, [real(6, 9)])
    case("cross", "middle", lambda a, b, dim: torch.linalg.cross(a, b, dim=dim), [real(4, 3, 5), real(4, 3, 5)], dim=1)
    case("flip", "two", lambda x, dims: torch.flip(x, dims), [x], dims=[0, -1])
    case("roll", "two", lambda x, shifts, dims: torch.roll(x, shifts, dims), [x], shifts=[-1, 3], dims=[2, 0])
    case("repeat", "leading", lambda x, times: x.repeat(times), [real(2, 3)], times=[2, 1, 3])
    for descending in (0, 1):
        case("sort", f"descending {descending}", lambda x, dim, descending:
             torch.sort(x, dim=dim, descending=bool(descending), stable=True), [apart(4, 9)], dim=1,
             descending=descending)
        case("sort", f"ties, descending {descending}", lambda x, dim, descending:
             torch.sort(x, dim=dim, descending=bool(descending), stable=True),
             [given([3, 1, 3, math.nan, -0.0, 0.0, 1, -math.inf])], autocast=False, dim=0, descending=descending)
        case("topk", f"largest {descending}", lambda x, k, dim, largest: torch.topk(x, k, dim, bool(largest)),
             [apart(4, 9)], k=3, dim=1, largest=descending)
    case("argsort", "columns", lambda x, dim, descending:
         torch.argsort(x, dim=dim, descending=bool(descending), stable=True),
         [apart(7, 4, needs=False)], dim=0, descending=0)
    modes = ["linear", "lower", "higher", "midpoint", "nearest"]
    for m, name in enumerate(modes):
        def quantile(x, q, dim, keepdim, interpolation):
            return torch.quantile(x, torch.tensor(q, dtype=x.dtype), dim, bool(keepdim),
                                  interpolation=modes[interpolation])
        case("quantile", name, quantile, [real(4, 9)], autocast=m == 0, q=[0.0, 0.375, 0.8125], dim=1, keepdim=0,
             interpolation=m)
    holes = np.arange(24.0).reshape(3, 8) * 5 % 23
    holes[1, 2:5] = math.nan
    case("nanquantile", "linear", lambda x, q, dim, keepdim, interpolation:
         torch.nanquantile(x, torch.tensor(q, dtype=x.dtype), dim, bool(keepdim)), [given(holes)], autocast=False,
         q=[0.25, 0.5], dim=1, keepdim=1, interpolation=0)
    for p in (1.0, 2.0, 3.0, math.inf):
        case("cdist", f"order {p}", lambda a, b, p: torch.cdist(a, b, p, "donot_use_mm_for_euclid_dist"),
             [real(2, 4, 5), real(2, 3, 5)], autocast=p == 2, p=p)
        case("pdist", f"order {p}", lambda x, p: F.pdist(x, p), [real(6, 4)], autocast=p == 2, p=p)


def pairs_of(z):
    return torch.view_as_real(z.resolve_conj())


def complex_cases():
    pair = [real(3, 4), away(3, 4)]
    four = pair + [real(4, 3), real(4, 3)]

    def plain(op, what, fn, inputs, **args):
        case(op, what, fn, inputs, autocast=False, **args)
    plain("complex", "pairs", lambda a, b: pairs_of(torch.complex(a, b)), pair)
    plain("view_as_real", "of a square", lambda a, b: pairs_of(torch.complex(a, b) ** 2), pair)
    plain("view_as_complex", "quotient", lambda x: pairs_of(1j / torch.view_as_complex(x)), [away(3, 2)])
    plain("real", "of a product", lambda a, b, c, d: (torch.complex(a, b) @ torch.complex(c, d)).real, four)
    plain("imag", "of a quotient", lambda a, b: (torch.complex(a, b) / torch.complex(b, a)).imag, pair)
    plain("conj", "times itself", lambda a, b: pairs_of(torch.complex(a, b).conj() * torch.complex(a, b).exp()), pair)
    plain("polar", "radius and angle", lambda a, b: pairs_of(torch.polar(a, b)), [positive(3, 4), real(3, 4)])
    plain("angle", "of pairs", lambda a, b: torch.complex(a, b).angle(), pair)


def fft_cases():
    norms = ["backward", "ortho", "forward"]
    pair = [real(3, 5, 6), real(3, 5, 6)]

    def plain(op, what, fn, inputs, **args):
        case(op, what, fn, inputs, autocast=False, **args)
    real_in, real_out = {"rfft", "ihfft"}, {"irfft", "hfft"}

    def family(name, suffix):
        f = getattr(torch.fft, name + suffix)

        def call(*x, norm, n=None, dim=None, sizes=None, dims=None):
            x = x[0] if name in real_in else torch.complex(*x)
            y = f(x, sizes, dims, norms[norm]) if sizes else f(x, n if n > 0 else None, dim, norms[norm])
            return y if name in real_out else pairs_of(y)
        return call
    for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
        ins = pair[:1] if name in real_in else pair
        plain("fft_" + name, "last", family(name, ""), ins, n=-1, dim=-1, norm=1)
        plain("fft_" + name, "padded", family(name, ""), ins, n=7, dim=1, norm=0)
        plain("fft_" + name, "cut", family(name, ""), ins, n=4, dim=2, norm=2)
        plain("fft_" + name + "2", "cut and padded", family(name, "2"), ins, sizes=[4, 7], dims=[-2, -1], norm=0)
        plain("fft_" + name + "n", "other order", family(name, "n"), ins, sizes=[5, 4, 3], dims=[1, 2, 0], norm=1)
    plain("fft_fftshift", "two dims", lambda x, dims: torch.fft.fftshift(x, dims), [real(4, 5)], dims=[0, 1])
    plain("fft_ifftshift", "two dims", lambda x, dims: torch.fft.ifftshift(x, dims), [real(4, 5)], dims=[0, 1])
    dummy = real(1, needs=False)
    plain("fft_fftfreq", "7", lambda x, n, d: torch.fft.fftfreq(n, d, dtype=x.dtype), [dummy], n=7, d=0.25)
    plain("fft_rfftfreq", "8", lambda x, n, d: torch.fft.rfftfreq(n, d, dtype=x.dtype), [dummy], n=8, d=0.5)

    def stft(x, w, n, hop, length, normalized):
        return pairs_of(torch.stft(x, n, hop, length, w, center=True, normalized=bool(normalized), return_complex=True))

    def istft(x, w, n, hop, length, normalized):
        z = torch.stft(x, n, hop, length, w, center=True, normalized=bool(normalized), return_complex=True)
        return torch.istft(z * z.abs(), n, hop, length, w, center=True, normalized=bool(normalized))
    plain("stft", "two signals", stft, [real(2, 40), positive(6, needs=True)], n=8, hop=3, length=6, normalized=1)
    plain("istft", "of a changed spectrum", istft, [real(2, 40), positive(8, lo=0.5, hi=2)], n=8, hop=2, length=8,
          normalized=0)


def linalg_cases():
    L = torch.linalg
    x, b, tall = real(2, 4, 4, scale=0.5), real(2, 4, 2), real(2, 5, 3)

    def plain(op, what, fn, inputs, **args):
        case(op, what, fn, inputs, autocast=False, **args)

    def well(x):
        return x + 3 * torch.eye(x.shape[-1], dtype=x.dtype)

    def positive_definite(x):
        return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)
    spd = positive_definite
    plain("linalg_cholesky", "lower", lambda x, upper: L.cholesky(spd(x), upper=bool(upper)), [x], upper=0)
    plain("linalg_cholesky", "upper", lambda x, upper: L.cholesky(spd(x), upper=bool(upper)), [x], upper=1)
    plain("linalg_cholesky_ex", "both", lambda x: tuple(L.cholesky_ex(spd(x))), [x])
    plain("cholesky_inverse", "lower", lambda x: torch.cholesky_inverse(well(x).tril()), [x])
    plain("cholesky_solve", "upper", lambda b, x: torch.cholesky_solve(b, well(x).triu(), upper=True), [b, x])
    plain("triangular_solve", "transposed", lambda b, x: torch.triangular_solve(b, well(x), True, True, False)[0],
          [b, x])
    plain("linalg_inv", "two", lambda x: L.inv(well(x)), [x])
    plain("inverse", "two", lambda x: torch.inverse(well(x)), [x])
    plain("linalg_inv_ex", "two", lambda x: tuple(L.inv_ex(well(x))), [real(2, 4, 4, needs=False)])
    plain("linalg_solve", "columns", lambda x, b: L.solve(well(x), b), [x, b])
    plain("linalg_solve", "vector", lambda x, b: L.solve(well(x), b), [real(4, 4), real(4)])
    plain("linalg_tensorinv", "2", lambda x, ind: L.tensorinv(x, ind), [real(2, 3, 6)], ind=2)
    plain("linalg_tensorsolve", "dims", lambda a, b, dims: L.tensorsolve(a, b, dims), [real(2, 6, 3), real(6)],
          dims=[0, 2])
    plain("linalg_lu_factor", "square", lambda x: tuple(L.lu_factor(x)), [x])
    plain("linalg_lu_factor_ex", "square", lambda x: tuple(L.lu_factor_ex(x)), [x])
    plain("linalg_lu_factor", "tall", lambda x: tuple(L.lu_factor(x)), [tall])
    plain("linalg_lu_factor", "wide", lambda x: tuple(L.lu_factor(x)), [real(3, 5)])
    plain("linalg_det", "two", lambda x: L.det(x), [x])
    plain("linalg_slogdet", "two", lambda x: (L.slogdet(well(x))[0].detach(), L.slogdet(well(x))[1]), [x])
    plain("lu_solve", "columns", lambda b, x: torch.lu_solve(b, *L.lu_factor(x)), [b, real(2, 4, 4)])
    modes = ["reduced", "complete"]
    plain("linalg_qr", "tall", lambda x, mode: tuple(L.qr(x, mode=modes[mode])), [tall], mode=0)
    plain("linalg_qr", "wide", lambda x, mode: tuple(L.qr(x, mode=modes[mode])), [real(2, 3, 5)], mode=0)
    plain("linalg_qr", "complete", lambda x, mode: tuple(L.qr(x.detach(), mode=modes[mode])), [real(5, 3, needs=False)],
          mode=1)
    plain("geqrf", "tall", lambda x: tuple(torch.geqrf(x)), [real(2, 5, 3, needs=False)])
    plain("orgqr", "tall", lambda x: torch.orgqr(*torch.geqrf(x)), [real(5, 3, needs=False)])
    plain("linalg_householder_product", "tall", lambda x: L.householder_product(*torch.geqrf(x)),
          [real(2, 5, 3, needs=False)])
    plain("orgqr", "gradient", lambda a, tau: torch.orgqr(a, tau), [real(2, 5, 3), positive(2, 3, lo=0.25, hi=1)])
    plain("linalg_householder_product", "gradient", lambda a, tau: L.householder_product(a, tau),
          [real(5, 4), positive(2, lo=0.25, hi=1)])
    for left, transposed in ((1, 0), (0, 1)):
        plain("ormqr", f"gradient, left {left}",
              lambda a, tau, c, left, transposed: torch.ormqr(a, tau, c, bool(left), bool(transposed)),
              [real(5, 3), positive(3, lo=0.25, hi=1), real(5, 2) if left else real(2, 5)], left=left,
              transposed=transposed)
    plain("ormqr", "transposed", lambda x, c: torch.ormqr(*torch.geqrf(x), c, True, True),
          [real(5, 3, needs=False), real(5, 2, needs=False)])

    def svd(x, full):
        u, s, vh = L.svd(x, full_matrices=bool(full))
        return (u * u).contiguous(), s, (vh * vh).contiguous()
    plain("linalg_svd", "tall", svd, [tall], full=0)
    plain("linalg_svd", "square", svd, [x], full=1)

    def old_svd(x):
        u, s, v = torch.svd(x)
        return (u * u).contiguous(), s, (v * v).contiguous()
    plain("svd", "wide", old_svd, [real(2, 3, 4)])
    plain("linalg_svdvals", "tall", L.svdvals, [tall])

    def eig(x):
        w, v = L.eig(x)
        power = (w ** 3).sum(-1)  # whatever their order
        return pairs_of(power), (v.abs() ** 2 * w.abs().unsqueeze(-2)).sum(-1)
    plain("linalg_eig", "two", eig, [x])
    plain("linalg_eigvals", "two", lambda x: pairs_of((L.eigvals(well(x)) ** 2).sum(-1)), [x])

    def eigh(x, upper):
        w, v = L.eigh(x + x.mT, UPLO="UL"[1 - upper])
        return w, (v * v).contiguous()
    plain("linalg_eigh", "lower", eigh, [x], upper=0)
    plain("linalg_eigvalsh", "upper", lambda x, upper: L.eigvalsh(x + x.mT, UPLO="U"), [x], upper=1)
    plain("linalg_lstsq", "tall", lambda x, b: L.lstsq(x, b)[0], [tall, real(2, 5, 2)])
    plain("pinverse", "tall", lambda x: torch.pinverse(x), [tall])
    plain("linalg_matrix_rank", "two", lambda x: L.matrix_rank(x), [real(2, 5, 3, needs=False)])
    for what, p in (("2", 2.0), ("-2", -2.0), ("1", 1.0), ("-inf", -math.inf), ("fro", 0.0)):
        plain("linalg_cond", what, lambda x, p: L.cond(well(x), p if p else "fro"),  # torch's gradient of others fails
              [real(2, 4, 4, scale=0.5, needs=abs(p) == 2)], p=p)


def attention_cases():
    def sdpa(q, k, v, *mask, causal, scale):
        return F.scaled_dot_product_attention(q, k, v, mask[0] if mask else None, 0.0, bool(causal),
                                              scale=scale or None)

    def qkv(t=7, s=7):
        return [real(1, 2, t, 8), real(1, 2, s, 8), real(1, 2, s, 6)]
    case("scaled_dot_product_attention", "plain", sdpa, qkv(5, 9), autocast=False, causal=0, scale=0.0)
    case("scaled_dot_product_attention", "causal", sdpa, qkv(), causal=1, scale=0.0)
    case("scaled_dot_product_attention", "scaled", sdpa, qkv(), autocast=False, causal=0, scale=0.5)
    case("scaled_dot_product_attention", "additive mask", sdpa, qkv() + [real(7, 7, needs=False)], causal=0, scale=0.0)


    def several(q, k, v, w_in, b_in, w_out, b_out, *mask, heads, causal, weights):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        if causal:
            mask = (torch.ones(q.shape[0], k.shape[0], dtype=torch.bool).triu(1),)
        y, p = F.multi_head_attention_forward(
            q, k, v, q.shape[2], heads, w_in, b_in, None, None, False, 0.0, w_out, b_out, need_weights=bool(weights),
            attn_mask=mask[0] if mask else None)
        return (y.transpose(0, 1), p) if weights else y.transpose(0, 1)

    def projections(E):
        return [real(3 * E, E, scale=0.5), real(3 * E, scale=0.5), real(E, E, scale=0.5), real(E, scale=0.5)]
    case("multi_head_attention", "weights", several, [real(2, 5, 6), real(2, 7, 6), real(2, 7, 6)] + projections(6),
         autocast=False, heads=2, causal=0, weights=1)
    case("multi_head_attention", "causal", several, [real(2, 5, 6), real(2, 5, 6), real(2, 5, 6)] + projections(6),
         heads=3, causal=1, weights=0)
    case("multi_head_attention", "added mask", several, [real(2, 5, 6), real(2, 7, 6), real(2, 7, 6)] + projections(6) +
         [real(5, 7, needs=False)], autocast=False, heads=2, causal=0, weights=1)


def recurrent_cases():
    def sequence(run, states, packed, *x, bidirectional, batch_first, lengths, **args):
        x, h, w = x[0], list(x[1:1 + states]), list(x[1 + states:])
        n = w.pop() if lengths else None
        layers = len(w) // (4 * (1 + bidirectional))
        rest = (w, True, layers, 0.0, False, bool(bidirectional))
        if n is None:
            return run(x, tuple(h) if states > 1 else h[0], *rest, bool(batch_first))
        p = torch.nn.utils.rnn.pack_padded_sequence(x, n, bool(batch_first), False)
        h = [s.index_select(1, p.sorted_indices) for s in h]
        y, *last = packed(p.data, p.batch_sizes, tuple(h) if states > 1 else h[0], *rest)
        p = torch.nn.utils.rnn.PackedSequence(y, p.batch_sizes, p.sorted_indices, p.unsorted_indices)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(p, bool(batch_first), 0.0, x.shape[1 if batch_first else 0])
        return [y] + [s.index_select(1, p.unsorted_indices) for s in last]

    def weights(gates, hidden, *wide):
        return [w for n in wide for w in (real(gates * hidden, n, scale=0.5), real(gates * hidden, hidden, scale=0.5),
                                          real(gates * hidden, scale=0.5), real(gates * hidden, scale=0.5))]

    def both(f):
        return lambda *x, f=f, **args: sequence(f, 1, f, *x, **args)
    tanh, relu, gru = both(torch._VF.rnn_tanh), both(torch._VF.rnn_relu), both(torch._VF.gru)

    def lstm(*x, **args):
        return sequence(torch._VF.lstm, 2, torch._VF.lstm, *x, **args)
    plain = dict(bidirectional=0, batch_first=0, lengths=0)
    case("rnn", "tanh", lambda *x, relu, **args: tanh(*x, **args),
         [real(6, 3, 5), real(1, 3, 7)] + weights(1, 7, 5), relu=0, **plain)
    case("rnn", "relu, packed", lambda *x, relu, f=relu, **args: f(*x, **args),
         [real(6, 3, 5), real(1, 3, 7)] + weights(1, 7, 5) + [given([4, 6, 2], dtype=np.int64)], autocast=False,
         relu=1, bidirectional=0, batch_first=0, lengths=1)
    case("gru", "plain", gru, [real(6, 3, 5), real(1, 3, 7)] + weights(3, 7, 5), **plain)
    case("gru", "both directions, batch first, packed", gru,
         [real(3, 6, 5), real(2, 3, 7)] + weights(3, 7, 5, 5) + [given([4, 6, 2], dtype=np.int64)], autocast=False,
         bidirectional=1, batch_first=1, lengths=1)
    case("lstm", "plain", lstm, [real(6, 3, 5), real(1, 3, 7), real(1, 3, 7)] + weights(4, 7, 5), **plain)
    case("lstm", "two layers, both directions", lstm,
         [real(6, 3, 5), real(4, 3, 7), real(4, 3, 7)] + weights(4, 7, 5, 5, 14, 14), autocast=False, bidirectional=1,
         batch_first=0, lengths=0)
    case("lstm", "packed, batch first", lstm,
         [real(3, 6, 5), real(1, 3, 7), real(1, 3, 7)] + weights(4, 7, 5) + [given([4, 6, 2], dtype=np.int64)],
         autocast=False, bidirectional=0, batch_first=1, lengths=1)
    case("rnn_cell", "tanh", lambda *x, relu: torch._VF.rnn_tanh_cell(*x), [real(4, 5), real(4, 7)] + weights(1, 7, 5),
         relu=0)
    case("rnn_cell", "relu", lambda *x, relu: torch._VF.rnn_relu_cell(*x), [real(4, 5), real(4, 7)] + weights(1, 7, 5),
         autocast=False, relu=1)
    case("gru_cell", "plain", torch._VF.gru_cell, [real(4, 5), real(4, 7)] + weights(3, 7, 5))
    case("lstm_cell", "plain", lambda x, h, c, *w: torch._VF.lstm_cell(x, (h, c), *w),
         [real(4, 5), real(4, 7), real(4, 7)] + weights(4, 7, 5))


# --- one case in one precision ----------------------------------------------------------------------------------------

def outputs_of(y):
    return list(y) if isinstance(y, (tuple, list)) else [y]


def evaluate(fn, args, tensors, needs, dys, around=None):
    """Results and gradients; dys: one per floating result that needs one, as float64, cast to the result's dtype."""
    leaves = [t.detach().clone().requires_grad_(bool(n)) if t.is_floating_point() else t.clone()
              for t, n in zip(tensors, needs)]
    if around is None:
        y = outputs_of(fn(*leaves, **args))
    else:
        y = outputs_of(around(leaves))
    differentiable = [o for o in y if o.is_floating_point() and o.requires_grad]
    wanted = [t for t, n in zip(leaves, needs) if n]
    grads = []
    if wanted:
        grads = torch.autograd.grad(differentiable, wanted, [d.to(o.dtype) for d, o in zip(dys, differentiable)])
    return [o.detach() for o in y], list(grads)


def ulp(x, dtype):
    """Distance of neighbours at |x|, an array of float64."""
    _, e = np.frexp(np.abs(x))
    return np.ldexp(1.0, np.maximum(e - DIGITS[dtype], LEAST[dtype]))


def errors(got, want, unit):
    """Largest error relative to the largest element, in ulps of it, and largest error in ulps of each element."""
    got, want = got.double().numpy().ravel(), want.double().numpy().ravel()
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if unit is None:
        return (0.0, 0.0) if same.all() else (math.inf, math.inf)
    finite = np.isfinite(want)
    if not (same | finite).all() or (finite & ~np.isfinite(got)).any():
        return math.inf, math.inf
    d = np.where(same, 0.0, np.abs(np.where(finite, got, 0) - np.where(finite, want, 0)))
    top = np.max(np.abs(want[finite])) if finite.any() else 0.0
    each = d / ulp(np.where(finite, want, 0), unit)
    return float(np.max(d / ulp(top, unit), initial=0)), float(np.max(each, initial=0))


def text(args):
    def one(v):
        return ",".join(one(x) for x in v) if isinstance(v, list) else repr(v)
    return " ".join(f"{k}={one(v)}" for k, v in args.items())


def shaped(t):
    return f"{NAMES[t.dtype]}[{','.join(str(s) for s in t.shape)}]"


def put(group, name, array):
    """A small contiguous dataset inside its object header: no chunks, no times."""
    array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
    space = h5py.h5s.create_simple(array.shape) if array.ndim else h5py.h5s.create(h5py.h5s.SCALAR)
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plist.set_obj_track_times(False)
    if array.nbytes < 60000 and array.size:
        plist.set_layout(h5py.h5d.COMPACT)
    d = h5py.h5d.create(group.id, name.encode(), h5py.h5t.py_create(array.dtype, logical=True), space, plist)
    if array.size:
        d.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
    return h5py.Dataset(d)


def note(node, **attributes):
    for k, v in attributes.items():
        node.attrs[k] = np.bytes_(v if v else " ")


def open_file(name):
    f = h5py.File(os.path.join(HERE, name), "w", libver=("v108", "v108"), track_order=False)
    note(f, made_with=f"torch {torch.__version__}, numpy {np.__version__}, h5py {h5py.__version__}")
    return f


def is_float(t):
    return t.is_floating_point()


def variant_inputs(op, table, low, tensors, inputs):
    """Dtypes of the leaves, and dtypes that the policy computes in (None: not floating)."""
    kind = policy(op, table)
    leaf, compute, first = [], [], True
    for t, i in zip(tensors, inputs):
        if not is_float(t):
            leaf.append(t.dtype)
            compute.append(None)
            continue
        if kind == "lower" or i.wide or (kind == "promote" and not first):
            leaf.append(torch.float32)
        else:
            leaf.append(low)
        first = False
        compute.append({"lower": low, "fp32": torch.float32, "promote": torch.float32}.get(kind, leaf[-1]))
    return kind, leaf, compute


def variant(op, table, short, fn, args, tensors, inputs, dys, why):
    low = SHORT[short]
    kind, leaf, compute = variant_inputs(op, table, low, tensors, inputs)
    if kind == "error":
        return None
    needs = [i.needs and is_float(t) for i, t in zip(inputs, tensors)]
    held = [t.to(l) if is_float(t) else t for t, l in zip(tensors, leaf)]

    def by_hand(leaves):
        return fn(*[t.to(c) if c else t for t, c in zip(leaves, compute)], **args)

    def by_autocast(leaves):
        with torch.autocast("cpu", dtype=low):
            return fn(*leaves, **args)

    got, how = None, None
    try:
        emulated = evaluate(fn, args, held, needs, dys, by_hand)
        got, how = emulated, "hand"
    except RuntimeError as e:
        emulated = None
        why.append(f"{op} {short} {table}: no kernel ({str(e).splitlines()[0][:70]})")
    if table == "cpu":
        try:
            real_one = evaluate(fn, args, held, needs, dys, by_autocast)
            if emulated is None or [y.dtype for y in real_one[0]] == [y.dtype for y in emulated[0]]:
                got, how = real_one, "autocast"
            else:
                why.append(f"{op} {short} {table}: autocast gives {[y.dtype for y in real_one[0]]}, "
                           f"by hand {[y.dtype for y in emulated[0]]}")
        except RuntimeError as e:
            why.append(f"{op} {short} {table}: no autocast ({str(e).splitlines()[0][:70]})")

    seen = [t.to(c).double() if c else t for t, c in zip(held, compute)]
    if got is not None:
        dtypes = [y.dtype for y in got[0]]
    else:
        lone = torch.float32 if kind in ("fp32", "promote") else low
        dtypes = [lone if is_float(y) else y.dtype for y in evaluate(fn, args, seen, needs, dys)[0]]
    rounded_dys = [d.to(low if is_float_low(dtypes, k, low) else torch.float32).double() for k, d in enumerate(dys)]
    want_y, want_g = evaluate(fn, args, seen, needs, rounded_dys)
    units = [d if d.is_floating_point else None for d in dtypes]
    for l, c, n in zip(leaf, compute, needs):
        if n:
            units.append(l if DIGITS[l] < DIGITS[c] else c)
    if got is None:
        how = "rounded"
        got = [w.to(d) for w, d in zip(want_y, dtypes)], [w.to(u).to(l) for w, u, l in
                                                          zip(want_g, units[len(want_y):],
                                                              [l for l, n in zip(leaf, needs) if n])]
    errs = [errors(g, w, u) for g, w, u in zip(got[0] + got[1], want_y + want_g, units)]
    return {"leaf": " ".join(NAMES[l] for l in leaf), "out": " ".join(NAMES[d] for d in dtypes), "how": how,
            "unit": " ".join(NAMES[u] if u else "exact" for u in units),
            "err": " ".join(f"{e[0]:.6g}" for e in errs), "err_each": " ".join(f"{e[1]:.6g}" for e in errs),
            "data": np.concatenate([w.double().numpy().ravel() for w in want_y + want_g])}


def is_float_low(dtypes, k, low):
    floating = [d for d in dtypes if d.is_floating_point]
    return floating[k] == low


def make_ops():
    make_cases("ops.h5", view_cases, elementwise_cases, reduction_cases, product_cases, convolution_cases, norm_cases,
               softmax_cases, loss_cases, index_cases, attention_cases, recurrent_cases)


def make_fft():
    make_cases("fft.h5", complex_cases, fft_cases, linalg_cases)


def make_cases(file, *groups):
    CASES.clear()
    for more in groups:
        more()
    why = []
    with open_file(file) as f:
        for op, what, fn, inputs, autocast, rule, args in CASES:
            r = np.random.default_rng(zlib.crc32(f"{op}/{what}".encode()))
            tensors = [torch.from_numpy(np.array(i.make(r))) for i in inputs]
            needs = [i.needs and is_float(t) for i, t in zip(inputs, tensors)]
            group = f.require_group(op).create_group(what)
            wide = [t.double() if is_float(t) else t for t in tensors]
            shapes, _ = evaluate(fn, args, tensors, [False] * len(needs), [])
            probe = [t.detach().clone().requires_grad_(n) if is_float(t) else t for t, n in zip(tensors, needs)]
            dys = [torch.from_numpy(rounded(r.standard_normal(tuple(y.shape)))).double()
                   for y in outputs_of(fn(*probe, **args)) if is_float(y) and y.requires_grad]
            y64, g64 = evaluate(fn, args, wide, needs, dys)
            y32, g32 = evaluate(fn, args, tensors, needs, dys)
            note(group, args=text(args), needs="".join(str(int(n)) for n in needs),
                 out=" ".join(shaped(y) for y in y32), policy=f"{policy(rule, 'cpu')} {policy(rule, 'cuda')}")
            for i, t in enumerate(tensors):
                put(group, f"in{i}", t.numpy().astype(np.uint8) if t.dtype == torch.bool else t.numpy())
            for i, d in enumerate(dys):
                put(group, f"dy{i}", d.float().numpy())
            put(group, "f64", np.concatenate([y.double().resolve_neg().numpy().ravel() for y in y64 + g64]))
            put(group, "f32",
                np.concatenate([y.double().resolve_neg().numpy().ravel() for y in y32 + g32]).astype(np.float32))
            if not autocast:
                continue
            for short in SHORT:
                v = {t: variant(rule, t, short, fn, args, tensors, inputs, dys, why) for t in ("cpu", "cuda")}
                alike = v["cpu"] and v["cuda"] and policy(rule, "cpu") == policy(rule, "cuda")
                for name, x in ([(short, v["cpu"])] if alike else [(f"{short}.{t}", v[t]) for t in v if v[t]]):
                    data = x.pop("data")
                    if "float32" not in x["unit"]:
                        data = data.astype(np.float32)
                    note(put(group, name, data), **x)
        n = len(CASES)
    print(f"{file}: {n} cases, {os.path.getsize(os.path.join(HERE, file))} bytes")
    for line in why:
        print("  " + line)


# --- training ---------------------------------------------------------------------------------------------------------

OPTIMIZERS = {
    "sgd plain": (torch.optim.SGD, dict(lr=0.1)),
    "sgd momentum": (torch.optim.SGD, dict(lr=0.05, momentum=0.9)),
    "sgd dampening": (torch.optim.SGD, dict(lr=0.05, momentum=0.9, dampening=0.3, weight_decay=0.01)),
    "sgd nesterov": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.02)),
    "adam plain": (torch.optim.Adam, dict(lr=0.01)),
    "adam decay": (torch.optim.Adam, dict(lr=0.003, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    "adamw plain": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw decay": (torch.optim.AdamW, dict(lr=0.002, betas=(0.85, 0.98), eps=1e-7, weight_decay=0.2)),
    "adam amsgrad": (torch.optim.Adam, dict(lr=0.01, amsgrad=True)),
    "adamw amsgrad": (torch.optim.AdamW, dict(lr=0.004, weight_decay=0.1, amsgrad=True)),
    "rmsprop plain": (torch.optim.RMSprop, dict(lr=0.01)),
    "rmsprop centered": (torch.optim.RMSprop, dict(lr=0.002, alpha=0.9, eps=1e-6, momentum=0.7, centered=True,
                                                   weight_decay=0.05)),
    "adagrad plain": (torch.optim.Adagrad, dict(lr=0.05)),
    "adagrad decay": (torch.optim.Adagrad, dict(lr=0.05, lr_decay=0.1, weight_decay=0.02, eps=1e-8,
                                                initial_accumulator_value=0.1)),
    "adamw averaged": (torch.optim.AdamW, dict(lr=0.02), dict(ema=0.9)),
    "sgd norm clipped": (torch.optim.SGD, dict(lr=0.1, momentum=0.9), dict(clip_norm=1.5)),
    "adamw norm clipped": (torch.optim.AdamW, dict(lr=0.01), dict(clip_norm=0.1)),
    "sgd value clipped": (torch.optim.SGD, dict(lr=0.1), dict(clip_value=0.25)),
    "sgd groups": (torch.optim.SGD, dict(lr=0.02, momentum=0.5), dict(first_lr=0.2)),
    "adamw groups": (torch.optim.AdamW, dict(lr=0.002, weight_decay=0.1), dict(first_lr=0.03)),
    "sgd absent": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, weight_decay=0.01), dict(absent=1)),
    "adam absent": (torch.optim.Adam, dict(lr=0.01), dict(absent=1)),
    "adamw absent": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1), dict(absent=1)),
}
STEPS = 20


def make_optimizers(f):
    r = np.random.default_rng(2)
    shapes = [(5, 7), (13,), ()]
    start = [rounded(r.standard_normal(s)) for s in shapes]
    sizes = [int(np.prod(s)) for s in shapes]
    # Gradients of unlike size: steps and elements differ by orders of magnitude, some are 0.
    grads = np.stack([np.concatenate([(rounded(r.standard_normal(s) * 10.0 ** r.integers(-3, 2))
                                       * (r.uniform(size=s) > 0.1)).ravel() for s in shapes])
                      for _ in range(STEPS)]).astype(np.float32)
    group = f.create_group("optimizers")
    put(group, "start", np.concatenate([s.ravel() for s in start]).astype(np.float32))
    put(group, "grads", grads)
    note(group, sizes=" ".join(str(s) for s in sizes))
    for name, (kind, options, *more) in OPTIMIZERS.items():
        # clip_norm, clip_value; first_lr: of parameter 0; absent: parameter 1 has no gradient at steps 1, 4, 7, ...;
        # ema: moving average of all from the start on, as it is after the last step
        more = more[0] if more else {}
        g = group.create_group(name)
        note(g, args=text({k: [*v] if isinstance(v, tuple) else float(v) for k, v in {**options, **more}.items()}))
        for dtype in (torch.float64, torch.float32):
            ps = [torch.from_numpy(s.copy()).to(dtype).requires_grad_() for s in start]
            groups = [dict(params=ps[:1], lr=more["first_lr"]), dict(params=ps[1:])] if "first_lr" in more else ps
            opt = kind(groups, foreach=False, **options)
            average = [p.detach().clone() for p in ps]
            move = torch.optim.swa_utils.get_ema_multi_avg_fn(more.get("ema", 0.5))
            track = []
            for step in range(STEPS):
                for p, piece in zip(ps, np.split(grads[step], np.cumsum(sizes)[:-1])):
                    p.grad = torch.from_numpy(piece.reshape(tuple(p.shape)).copy()).to(dtype)
                if more.get("absent") and step % 3 == 1:
                    ps[1].grad = None
                if "clip_norm" in more:
                    torch.nn.utils.clip_grad_norm_(ps, more["clip_norm"])
                if "clip_value" in more:
                    torch.nn.utils.clip_grad_value_(ps, more["clip_value"])
                opt.step()
                with torch.no_grad():
                    move(average, [p.detach() for p in ps], step + 1)
                track.append(np.concatenate([p.detach().numpy().ravel() for p in ps]))
            name = "f64" if dtype == torch.float64 else "f32"
            put(g, name, np.stack(track))
            if "ema" in more:
                put(g, "average_" + name, np.concatenate([a.numpy().ravel() for a in average]))


def make_schedules(f):
    """Learning rates of 40 steps from base 0.4."""
    s = torch.optim.lr_scheduler
    base, steps = 0.4, 40

    def warm(opt, n, then):
        return s.SequentialLR(opt, [s.LinearLR(opt, 1.0 / n, 1.0, n - 1), then], [n])
    schedules = {
        "constant": (lambda o: s.ConstantLR(o, 1.0), dict(kind=0, warmup=0, total=40, final=1.0, gamma=1.0, period=1)),
        "linear": (lambda o: s.LinearLR(o, 1.0, 0.1, 30),
                   dict(kind=1, warmup=0, total=30, final=0.1, gamma=1.0, period=1)),
        "cosine": (lambda o: s.CosineAnnealingLR(o, 40, base * 0.05),
                   dict(kind=2, warmup=0, total=40, final=0.05, gamma=1.0, period=1)),
        "step": (lambda o: s.StepLR(o, 7, 0.3), dict(kind=3, warmup=0, total=40, final=0.0, gamma=0.3, period=7)),
        "warm linear": (lambda o: warm(o, 8, s.LinearLR(o, 1.0, 0.2, 24)),
                        dict(kind=1, warmup=8, total=32, final=0.2, gamma=1.0, period=1)),
        "warm cosine": (lambda o: warm(o, 8, s.CosineAnnealingLR(o, 32, 0.0)),
                        dict(kind=2, warmup=8, total=40, final=0.0, gamma=1.0, period=1)),
        "warm step": (lambda o: warm(o, 5, s.StepLR(o, 10, 0.5)),
                      dict(kind=3, warmup=5, total=40, final=0.0, gamma=0.5, period=10)),
    }
    group = f.create_group("schedules")
    for name, (build, args) in schedules.items():
        opt = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=base)
        schedule, rates = build(opt), []
        for _ in range(steps):
            rates.append(opt.param_groups[0]["lr"])
            opt.step()
            schedule.step()
        d = put(group, name, np.array(rates))
        note(d, args=text({"lr": base, **args}))


class Block(torch.nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = torch.nn.LayerNorm(dim)
        self.attention = torch.nn.Module()
        self.attention.qkv = torch.nn.Linear(dim, 3 * dim)
        self.attention.proj = torch.nn.Linear(dim, dim)
        self.norm2 = torch.nn.LayerNorm(dim)
        self.fc = torch.nn.Linear(dim, 4 * dim)
        self.proj = torch.nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (y.view(b, t, self.heads, d // self.heads).transpose(1, 2)
                   for y in self.attention.qkv(self.norm1(x)).split(d, 2))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.attention.proj(a)
        return x + self.proj(F.gelu(self.fc(self.norm2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    """Pre-norm decoder whose head is tied to the token embedding, with the parameter names of lks_gpt_create."""

    def __init__(self, vocab, context, layers, dim, heads):
        super().__init__()
        self.token = torch.nn.Embedding(vocab, dim)
        self.position = torch.nn.Embedding(context, dim)
        self.blocks = torch.nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(dim)
        for name, p in self.named_parameters():
            if "norm" not in name:
                torch.nn.init.normal_(p, std=0.02 if p.dim() > 1 else 0.01)

    def forward(self, x):
        h = self.token(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.norm(h) @ self.token.weight.t()


class CNN(torch.nn.Module):
    """conv 3x3 - [batch norm] - relu - max pool 2 in stages, then linear, with the names of lks_cnn_create."""

    def __init__(self, channels, size, classes, width, stages, norm):
        super().__init__()
        self.stages = torch.nn.ModuleList()
        cin, out = channels, width
        for _ in range(stages):
            m = torch.nn.Module()
            m.conv = torch.nn.Conv2d(cin, out, 3, padding=1, bias=not norm)
            if norm:
                m.norm = torch.nn.BatchNorm2d(out)
            self.stages.append(m)
            cin, out = out, 2 * out
        self.head = torch.nn.Linear(cin * (size >> stages) ** 2, classes)

    def forward(self, x):
        for m in self.stages:
            x = m.conv(x)
            if hasattr(m, "norm"):
                x = m.norm(x)
            x = F.max_pool2d(F.relu(x), 2)
        return self.head(x.flatten(1))


def train(group, model, batches, steps, optimizer, loss_of):
    """Losses of `steps` steps by float32 and float64 from the same start; the float32 start and the float64 end."""
    start = {k: v.clone() for k, v in model.state_dict().items()}
    weights = group.create_group("start")
    for k, v in start.items():
        if v.is_floating_point():
            put(weights, k, v.numpy())
    for dtype in (torch.float64, torch.float32):
        model.load_state_dict(start)
        model.to(dtype)
        opt, losses = optimizer(model), []
        for step in range(steps):
            opt.zero_grad()
            loss = loss_of(model, batches[step % len(batches)], dtype)
            loss.backward()
            opt.step()
            losses.append(loss.item())
        name = "f64" if dtype == torch.float64 else "f32"
        put(group, f"loss_{name}", np.array(losses))
        end = group.create_group(f"end_{name}")
        for k, v in model.state_dict().items():
            if "running" in k:
                put(end, k, v.numpy())
    a, b = group["loss_f64"][:], group["loss_f32"][:]
    print(f"  {group.name}: loss {a[0]:.4f} -> {a[-1]:.4f}, float32 off by {np.max(np.abs(b - a) / a):.2e}")


def make_models(f):
    torch.manual_seed(5)
    r = np.random.default_rng(5)
    vocab, context, batch = 37, 16, 4
    tokens = np.zeros((50, batch, context + 1), dtype=np.uint8)
    for i in np.ndindex(50, batch):  # a walk that can be learned: the next is a function of the last, with noise
        x = int(r.integers(vocab))
        for t in range(context + 1):
            tokens[i][t] = x
            x = (5 * x + 3) % vocab if r.uniform() < 0.9 else int(r.integers(vocab))
    group = f.create_group("gpt")
    note(group, args=text(dict(vocab=vocab, context=context, layers=2, dim=24, heads=3, lr=2e-3, decay=0.01)))
    put(group, "tokens", tokens)
    train(group, GPT(vocab, context, 2, 24, 3), [torch.from_numpy(b.astype(np.int64)) for b in tokens], 50,
          lambda m: torch.optim.AdamW(m.parameters(), lr=2e-3, weight_decay=0.01),
          lambda m, b, dtype: F.cross_entropy(m(b[:, :-1]).reshape(-1, vocab), b[:, 1:].reshape(-1)))

    classes, size, count = 5, 12, 10
    labels = r.integers(0, classes, (count, 8))
    centers = r.integers(40, 216, (classes, 2, size, size))
    images = np.clip(centers[labels] + r.normal(0, 40, (count, 8, 2, size, size)), 0, 255).astype(np.uint8)
    for name, norm, steps in (("cnn", False, 50), ("cnn norm", True, 5)):
        group = f.create_group(name)
        note(group, args=text(dict(channels=2, size=size, classes=classes, width=6, stages=2, norm=int(norm), lr=0.05,
                                   momentum=0.9 if not norm else 0.0)))
        put(group, "images", images)
        put(group, "labels", labels.astype(np.int64))
        train(group, CNN(2, size, classes, 6, 2, norm), list(zip(images, labels)), steps,
              lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9 if not norm else 0.0),
              lambda m, b, dtype: F.cross_entropy(m(torch.from_numpy(b[0]).to(dtype) / 255),
                                                  torch.from_numpy(b[1])))


def make_train():
    with open_file("train.h5") as f:
        make_optimizers(f)
        make_schedules(f)
        make_models(f)
    print(f"train.h5: {os.path.getsize(os.path.join(HERE, 'train.h5'))} bytes")


# --- scaler -----------------------------------------------------------------------------------------------------------

KINDS = [0.5, math.inf, math.nan, -math.inf]


def run_scaler(group, script, init, growth=2.0, backoff=0.5, interval=2000):
    """script: rows (kind of A, kind of B, unscale first: bit 0 A, bit 1 B, new scale in the place of update or 0, new
    scale after update or 0, new interval or 0). kind -1: that optimizer takes no part. One SGD parameter each, lr 2^-4;
    the gradient is KINDS[kind] times the scale. Recorded per row: scale, tracker, A, B."""
    scaler = torch.amp.GradScaler("cpu", init_scale=init, growth_factor=growth, backoff_factor=backoff,
                                  growth_interval=interval)
    ps = [torch.zeros(1, requires_grad=True) for _ in range(2)]
    opts = [torch.optim.SGD([p], lr=2.0 ** -4) for p in ps]
    scaler.scale(torch.zeros(1))
    out = []
    for row in script:
        for i in range(2):
            if row[i] < 0:
                continue
            ps[i].grad = torch.tensor([KINDS[int(row[i])] * scaler.get_scale()], dtype=torch.float32)
            if int(row[2]) >> i & 1:
                scaler.unscale_(opts[i])
            scaler.step(opts[i])
        if row[3]:
            scaler.update(float(row[3]))
        else:
            scaler.update()
        if row[4]:
            scaler.update(float(row[4]))
        if row[5]:
            scaler.set_growth_interval(int(row[5]))
        out.append([scaler.get_scale(), scaler._get_growth_tracker(), ps[0].item(), ps[1].item()])
    note(group, args=text(dict(init=float(init), growth=growth, backoff=backoff, interval=interval)))
    put(group, "script", np.array(script, dtype=np.float64))
    put(group, "expected", np.array(out, dtype=np.float64))


def make_scaler():
    r = np.random.default_rng(11)
    script, interval, tracker = [], 5, 0  # a new interval is always above the tracker
    for step in range(500):
        bad = r.uniform() < 0.12
        a = int(r.integers(1, 4)) if bad and r.uniform() < 0.7 else 0
        b = int(r.integers(1, 4)) if bad and (a == 0 or r.uniform() < 0.3) else 0
        if r.uniform() < 0.08:
            a, b = (-1, b) if r.uniform() < 0.5 else (a, -1)
        row = [a, b, int(r.integers(0, 4)) if r.uniform() < 0.4 else 0, 0, 0, 0]
        if r.uniform() < 0.03:
            row[3] = float(2.0 ** r.integers(4, 20))
        elif r.uniform() < 0.04:
            row[4] = float(np.float32(2.0 ** r.uniform(3, 22)))
        good = not (a > 0 or b > 0)
        if not row[3]:
            tracker = tracker + 1 if good else 0
            tracker = 0 if tracker == interval else tracker
        if r.uniform() < 0.06:
            row[5] = interval = tracker + int(r.integers(1, 8))
        script.append(row)
    with open_file("scaler.h5") as f:
        run_scaler(f.create_group("script"), script, 65536.0, interval=interval)
        run_scaler(f.create_group("odd factors"), [[int(r.uniform() < 0.2), 0, 0, 0, 0, 0] for _ in range(200)], 1000.0,
                   growth=1.3, backoff=0.7, interval=3)
        run_scaler(f.create_group("oracle"), [[k, -1, 0, 0, 0, 0] for k in (1, 0, 0, 0, 1, 0, 0)], 65536.0, interval=3)
        run_scaler(f.create_group("lowered interval"),
                   [[0, 0, 0, 0, 0, 3 if i == 4 else 0] for i in range(8)], 65536.0, interval=10)
        run_scaler(f.create_group("ceiling"), [[0, 0, 0, 0, 0, 0]] * 4, 2.0 ** 125, interval=1)
        run_scaler(f.create_group("floor"), [[1, 1, 0, 0, 0, 0]] * 4, 2.0 ** -125)
    print(f"scaler.h5: {os.path.getsize(os.path.join(HERE, 'scaler.h5'))} bytes")


if __name__ == "__main__":
    torch.set_num_threads(1)
    parts = {"ops": make_ops, "fft": make_fft, "train": make_train, "scaler": make_scaler}
    for part in sys.argv[1:] or list(parts):
        if part not in parts:
            sys.exit(__doc__)
        parts[part]()
