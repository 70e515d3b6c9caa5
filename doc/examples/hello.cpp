// SPDX-License-Identifier: BSD-3-Clause
//
// hello.cpp - hello.c in C++17, in a program that has MPI already: objects are owned by std::unique_ptr, failures become
// exceptions. Build and run:
//
//   mpicxx hello.cpp $(pkg-config --cflags --libs lockstep) -o hello_cxx && mpirun -n 2 ./hello_cxx
#include <lockstep.h>

#include <array>
#include <cstdio>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

// Owns what a create call gave, and gives it to the destroy call.
template <typename T, auto destroy> struct destroyer {
    void operator()(T *p) const { destroy(&p); }
};
template <typename T, auto destroy> using owned = std::unique_ptr<T, destroyer<T, destroy>>;
using context = owned<lks_context, lks_context_destroy>;
using params = owned<lks_params, lks_params_destroy>;
using module_ = owned<lks_module, lks_module_destroy>;
using optim = owned<lks_optim, lks_optim_destroy>;
using dp = owned<lks_dp, lks_dp_destroy>;

void check(lks_status s, const lks_context *ctx)
{
    if (s != LKS_OK) throw std::runtime_error(ctx ? lks_error(ctx) : lks_status_text(s));
}

template <typename Owned, typename Create> Owned make(const lks_context *ctx, Create create)
{
    typename Owned::pointer p = nullptr;
    check(create(&p), ctx);
    return Owned(p);
}

std::vector<float> values(lks_params *ps, const char *name)
{
    lks_tensor *t = lks_params_tensor(ps, lks_params_find(ps, name));
    std::vector<float> v(static_cast<size_t>(lks_numel(t)));
    lks_to_host(t, v.data(), static_cast<int64_t>(v.size() * sizeof v[0]));
    return v;
}

void train(MPI_Comm comm)
{
    auto ctx = make<context>(nullptr, [&](lks_context **p) { return lks_context_create(comm, nullptr, p); });
    lks_context *c = ctx.get();
    auto ps = make<params>(c, [&](lks_params **p) { return lks_params_create(c, p); });
    auto model = make<module_>(c, [&](lks_module **p) { return lks_linear_create(ps.get(), "", 3, 1, 1, p); });
    auto opt = make<optim>(c, [&](lks_optim **p) { return lks_optim_create(ps.get(), LKS_ADAM, p); });
    auto sum = make<dp>(c, [&](lks_dp **p) { return lks_dp_create(ps.get(), 0, p); });
    check(lks_optim_set_lr(opt.get(), -1, 0.05), c);
    check(lks_dp_set_nominal(sum.get(), 8 * lks_size(c)), c);

    for (int step = 0; step < 1500; step++) {
        std::array<float, 24> x; // this rank's 8 samples of y = 1 x0 - 2 x1 + 3 x2 + 4
        std::array<float, 8> y;
        for (size_t i = 0; i < 8; i++) {
            for (size_t k = 0; k < 3; k++) { // any scattered numbers in [0, 1)
                auto n = static_cast<uint32_t>(((step * lks_size(c) + lks_rank(c)) * 8 + static_cast<int>(i)) * 3) +
                         static_cast<uint32_t>(k);
                x[3 * i + k] = static_cast<float>(n * 2654435761u >> 8) / (1 << 24);
            }
            y[i] = x[3 * i] - 2 * x[3 * i + 1] + 3 * x[3 * i + 2] + 4;
        }
        const int64_t xs[] = {8, 3}, ys[] = {8, 1};
        check(lks_scope_begin(c), c); // what is made from here to lks_scope_end dies there
        check(lks_params_zero_grad(ps.get()), c);
        lks_tensor *error = lks_sub(lks_module_forward(model.get(), lks_from_host(c, LKS_F32, 2, xs, x.data())),
                                    lks_from_host(c, LKS_F32, 2, ys, y.data()));
        lks_tensor *loss = lks_sum(lks_mul(error, error), 0, nullptr, 0, LKS_DTYPE_NONE);
        check(lks_dp_backward(sum.get(), nullptr, loss, 8, LKS_NONE, 1), c); // sums the gradients of all ranks
        check(lks_optim_step(opt.get(), nullptr), c);
        check(lks_scope_end(c), c);
    }
    auto w = values(ps.get(), "weight"), b = values(ps.get(), "bias");
    if (lks_rank(c) == 0) std::printf("y = %.2f x0 %+.2f x1 %+.2f x2 %+.2f\n", w[0], w[1], w[2], b[0]);
}

} // namespace

int main(int argc, char **argv)
{
    int failed = 0;
    MPI_Init(&argc, &argv);
    try {
        train(MPI_COMM_WORLD);
    } catch (const std::exception &e) {
        std::fprintf(stderr, "%s\n", e.what());
        failed = 1;
    }
    MPI_Finalize(); // the library leaves MPI to whoever initialised it
    return failed;
}
