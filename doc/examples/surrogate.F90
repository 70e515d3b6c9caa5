! SPDX-License-Identifier: BSD-3-Clause
!
! surrogate.F90 - a Fortran program that has its own MPI and its own field trains a network on it while it runs: the field
! decays and drifts; the network learns to tell its next value at a point from three values now. Compile with
!   mpifort surrogate.F90 $(pkg-config --cflags --libs lockstep-fortran)
program surrogate
    use, intrinsic :: iso_fortran_env, only: real32, real64
    use mpi
    use lockstep
    implicit none
    integer, parameter :: nx = 256, steps = 400
    type(lks_context) :: ctx
    type(lks_params) :: ps
    type(lks_module) :: net
    type(lks_optim) :: opt
    type(lks_dp) :: dp
    type(lks_tensor) :: diff, loss
    real(real32) :: u(0:nx+1), before(3, nx), next(1, nx)
    real(real64) :: value
    integer :: ierr, step, i, ranks, me
    character(len=:), allocatable :: message

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    ierr = lks_context_create(MPI_COMM_WORLD, ctx, message=message)
    if (ierr /= LKS_OK) then
        print '(a)', message
        call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
    end if
    ierr = lks_params_create(ctx, ps)
    ierr = lks_mlp_create(ps, "net", [3, 16, 1], 0.0_real64, net)
    ierr = lks_optim_create(ps, LKS_ADAM, opt)
    ierr = lks_optim_set_lr(opt, -1, 0.01_real64)
    ierr = lks_dp_create(ps, 0, dp)
    ierr = lks_dp_set_nominal(dp, real(nx * ranks, real64))

    u = [(sin(real(i + 17 * me) / 20) + 0.3 * cos(real(i) / 7), i = 0, nx + 1)]
    do step = 1, steps
        do i = 1, nx
            before(:, i) = u(i-1:i+1)
        end do
        call advance(u)
        next(1, :) = u(1:nx)

        ierr = lks_scope_begin(ctx)
        ierr = lks_params_zero_grad(ps)
        ! before(3, nx) reversed is [nx, 3]: nx samples of 3 values, no copy
        diff = lks_sub(lks_module_forward(net, lks_tensor_of(ctx, before, reversed=.true.)), &
            lks_tensor_of(ctx, next, reversed=.true.))
        loss = lks_sum(lks_mul(diff, diff), keepdim=0, dtype=LKS_DTYPE_NONE)
        ierr = lks_dp_backward(dp, loss=loss, weight=real(nx, real64), last=1)
        ierr = lks_optim_step(opt)
        if (mod(step, 100) == 0) then
            ierr = lks_item(loss, value)
            if (me == 0) print '(a,i4,a,es9.2)', "step", step, "  mean square error ", value / nx
        end if
        ierr = lks_scope_end(ctx)
    end do
    if (lks_error_code(ctx) /= LKS_OK) print '(a)', lks_error(ctx)

    call lks_dp_destroy(dp)
    call lks_optim_destroy(opt)
    call lks_module_destroy(net)
    call lks_params_destroy(ps)
    ierr = lks_context_destroy(ctx)
    call MPI_Finalize(ierr)

contains

    ! One explicit step of advection and diffusion, periodic on each rank.
    subroutine advance(u)
        real(real32), intent(inout) :: u(0:)
        u(1:nx) = u(1:nx) - 0.2 * (u(1:nx) - u(0:nx-1)) + 0.1 * (u(2:nx+1) - 2 * u(1:nx) + u(0:nx-1))
        u(0) = u(nx)
        u(nx+1) = u(1)
    end subroutine
end program
