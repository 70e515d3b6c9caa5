! SPDX-License-Identifier: BSD-3-Clause
!
! test_fortran.F90 - the Fortran module from a program of its own MPI: communicators of either kind, arrays of any rank and
! section, errors, and a whole training with autocast, loss scaler, checkpoint and inference. On any number of ranks.
program test_fortran
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: real32, real64, int32, int64
#ifdef LKS_MPI_F08
    use mpi_f08
#else
    use mpi
#endif
    use lockstep
    implicit none
    type(lks_context) :: ctx
    character(len=:), allocatable :: message
    integer :: n = 0, bad = 0, me, ranks, ierr

    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierr)
    call communicators
    ierr = lks_context_create(MPI_COMM_WORLD, ctx, device="cpu", threads=1, seed=3_int64, message=message)
    if (ierr /= LKS_OK) print '(a)', message
    call ok(ierr == LKS_OK .and. lks_size(ctx) == ranks, "a context on the program's communicator")
    call arrays
    call sections
    call copies
    call errors
    call training
    call ok(lks_context_destroy(ctx) == LKS_OK, "and it ends")
    call many
    if (me == 0) print '(a,i0)', "1..", n
    call MPI_Finalize(ierr)
    if (bad > 0) error stop 1

contains

    subroutine ok(good, what)
        logical, intent(in) :: good
        character(len=*), intent(in) :: what
        integer :: all, mine
        mine = merge(0, 1, good)
        call MPI_Allreduce(mine, all, 1, MPI_INTEGER, MPI_MAX, MPI_COMM_WORLD, ierr)
        n = n + 1
        bad = bad + all
        if (me == 0) print '(a,i0,2a)', trim(merge("ok    ", "not ok", all == 0)) // " ", n, " - ", what
    end subroutine

    subroutine communicators
        type(lks_context) :: part
        integer :: code, color, size_of_part, rank_of_part
        logical :: good
#ifdef LKS_MPI_F08
        type(MPI_Comm) :: half
#else
        integer :: half
#endif
        color = me / 2
        call MPI_Comm_split(MPI_COMM_WORLD, color, me, half, ierr)
        call MPI_Comm_size(half, size_of_part, ierr)
        call MPI_Comm_rank(half, rank_of_part, ierr)
        code = lks_context_create(half, part, device="cpu", threads=1)
        good = code == LKS_OK .and. lks_size(part) == size_of_part .and. lks_rank(part) == rank_of_part
        code = lks_context_destroy(part)
        call ok(good .and. code == LKS_OK, "B101: a split communicator in the kind of this program")
#ifdef LKS_MPI_F08
        code = lks_context_create(half%MPI_VAL, part, device="cpu", threads=1)
        good = code == LKS_OK .and. lks_size(part) == size_of_part
        code = lks_context_destroy(part)
        call ok(good .and. code == LKS_OK, "B101: and as an integer handle")
#endif
        call MPI_Comm_free(half, ierr)
    end subroutine

    subroutine arrays
        real(real32), target :: a(3, 2), x(2), y(3), half(2)
        type(lks_tensor) :: ta, tx, ty
        integer :: i, j, code
        do j = 1, 2
            do i = 1, 3
                a(i, j) = real(10 * i + j)
            end do
        end do
        x = [1.0, 2.0]
        code = lks_scope_begin(ctx)
        ta = lks_wrap_array(ctx, a)
        tx = lks_tensor_of(ctx, x)
        ty = lks_matmul(ta, tx)
        y = 0
        code = lks_to_array(ty, y)
        call ok(code == LKS_OK .and. all(y == [35.0, 65.0, 95.0]), "B144: y = A x in the order of Fortran's indices")
        call ok(all(lks_shape(ta) == [3_int64, 2_int64]) .and. all(lks_stride(ta) == [1_int64, 3_int64]), &
            "a lent array is column-major, without a copy")
        ty = lks_matmul(lks_wrap_array(ctx, a(1:3:2, :)), tx)
        code = lks_to_array(ty, half)
        call ok(code == LKS_OK .and. all(half == [35.0, 95.0]), "B144: a section is read with its strides")
        code = lks_fill_(ta, 7.0_real64)
        call ok(code == LKS_OK .and. all(a == 7.0), "writing a lent tensor writes the array")
        code = lks_scope_end(ctx)
    end subroutine

    subroutine sections
        real(real64), target :: u(4, 3, 2, 2)
        integer(int64) :: k(5)
        integer(int32) :: m(2, 2)
        type(lks_tensor) :: t, s
        real(real64) :: v(2, 2), w(3, 4)
        integer :: i, code
        u = reshape([(real(i, real64), i = 1, size(u))], shape(u))
        code = lks_scope_begin(ctx)
        t = lks_wrap_array(ctx, u, reversed=.true.)
        call ok(all(lks_shape(t) == [2_int64, 2_int64, 3_int64, 4_int64]) .and. lks_is_contiguous(t) == 1, &
            "B144: four dims reversed are row-major")
        s = lks_sum(t, [2, 3], 0, LKS_DTYPE_NONE)
        code = lks_to_array(s, v, reversed=.true.)
        call ok(code == LKS_OK .and. abs(v(1, 1) - 78) < 1e-12 .and. abs(v(2, 1) - 222) < 1e-12 .and. &
            abs(v(1, 2) - 366) < 1e-12, "B144: four dims in, two dims out")
        s = lks_tensor_of(ctx, u(1:4:2, 2, :, 1))
        code = lks_to_array(s, v)
        call ok(code == LKS_OK .and. all(v == u(1:4:2, 2, :, 1)), "a section is copied")
        w = -1
        code = lks_to_array(lks_ones(ctx, LKS_F64, [3, 2]), w(:, 2:4:2))
        call ok(code == LKS_OK .and. all(w(:, 2:4:2) == 1) .and. all(w(:, 1:3:2) == -1), "and written back into one")
        k = [(int(i, int64), i = 1, 5)]
        m = reshape([1, 2, 3, 4], [2, 2])
        k = 2 * k
        t = lks_tensor_of(ctx, k)
        call ok(lks_dtype_of(t) == LKS_I64 .and. lks_dtype_of(lks_tensor_of(ctx, m)) == LKS_I32, "integers of both kinds")
        code = lks_scope_end(ctx)
    end subroutine

    subroutine copies
        real(real32) :: a(2, 3), b(2, 3)
        type(lks_tensor) :: t
        integer :: code
        call random_number(a)
        code = lks_scope_begin(ctx)
        t = lks_zeros(ctx, LKS_F32, [2_int64, 3_int64])
        code = lks_from_array(t, a)
        if (code == LKS_OK) code = lks_to_array(t, b)
        call ok(code == LKS_OK .and. all(a == b), "an array goes into a tensor and back")
        t = lks_zeros(ctx, LKS_F32, [3, 2])
        code = lks_from_array(t, a, reversed=.true.)
        if (code == LKS_OK) code = lks_to_array(lks_transpose(t, 0, 1), b)
        call ok(code == LKS_OK .and. all(a == b), "reversed too")
        code = lks_scope_end(ctx)
    end subroutine

    subroutine errors
        real(real32) :: a(2, 3)
        type(lks_tensor) :: t
        integer :: code
        code = lks_scope_begin(ctx)
        t = lks_zeros(ctx, LKS_F32, [2, 2])
        code = lks_to_array(t, a)
        call ok(code == LKS_ERR_SHAPE .and. index(lks_error(ctx), "[2,3]") > 0, "a wrong shape is told with both shapes")
        call lks_error_clear(ctx)
        code = lks_to_array(lks_zeros(ctx, LKS_F64, [2, 3]), a)
        call ok(code == LKS_ERR_DTYPE .and. index(lks_error(ctx), "float64") > 0, "a wrong kind too")
        call lks_error_clear(ctx)
        t = lks_matmul(t, lks_zeros(ctx, LKS_F32, [3, 2]))
        call ok(lks_failed(t) .and. lks_error_code(ctx) == LKS_ERR_SHAPE, "a failed op")
        call lks_error_clear(ctx)
        t = lks_tensor_of(ctx, ["text"])
        call ok(lks_failed(t) .and. lks_error_code(ctx) == LKS_ERR_DTYPE, "an array of characters is refused")
        call lks_error_clear(ctx)
        call ok(lks_status_name(LKS_ERR_SHAPE) == "LKS_ERR_SHAPE" .and. lks_dtype_name(LKS_BF16) == "bfloat16", "names")
        code = lks_scope_end(ctx)
    end subroutine

    ! y = sin(3 x1) x2, learned by a small network on this rank's points.
    subroutine training
        type(lks_params) :: ps
        type(lks_module) :: net
        type(lks_optim) :: opt
        type(lks_scaler) :: scaler
        type(lks_dp) :: dp
        type(lks_checkpoint) :: ck
        type(lks_tensor) :: loss, y, diff
        real(real32) :: x(2, 64), target(1, 64), before(1, 64), after(1, 64)
        real(real64) :: first, last
        integer(int64) :: step_read
        integer :: step, code
        character(len=64) :: path
        code = lks_params_create(ctx, ps)
        if (code == LKS_OK) code = lks_mlp_create(ps, "net", [2, 32, 1], 0.0_real64, net)
        if (code == LKS_OK) code = lks_optim_create(ps, LKS_ADAM, opt)
        if (code == LKS_OK) code = lks_optim_set_lr(opt, -1, 0.01_real64)
        if (code == LKS_OK) code = lks_scaler_create(ctx, 1, scaler)
        if (code == LKS_OK) code = lks_dp_create(ps, 0, dp)
        if (code == LKS_OK) code = lks_dp_set_nominal(dp, 64.0_real64 * ranks)
        call ok(code == LKS_OK, "model, optimizer, scaler, data parallel")
        first = 0
        last = 0
        do step = 1, 200
            call points(step, x, target)
            code = lks_scope_begin(ctx)
            code = lks_params_zero_grad(ps)
            code = lks_autocast_begin(ctx, LKS_F16, 1, 1)
            y = lks_module_forward(net, lks_tensor_of(ctx, x, reversed=.true.))
            diff = lks_sub(lks_to(y, LKS_F32), lks_tensor_of(ctx, target, reversed=.true.))
            loss = lks_sum(lks_mul(diff, diff), keepdim=0, dtype=LKS_F32)
            code = lks_autocast_end(ctx)
            code = lks_dp_backward(dp, scaler, loss, 64.0_real64, last=1)
            if (code == LKS_OK) code = lks_optim_step(opt, scaler)
            if (code == LKS_OK) code = lks_scaler_update(scaler)
            if (step == 1) code = lks_item(loss, first)
            if (step == 200) code = lks_item(loss, last)
            code = lks_scope_end(ctx)
        end do
        call ok(lks_error_code(ctx) == LKS_OK .and. last < 0.1 * first, "200 steps in float16 with a scaler learn")
        call ok(lks_dp_check(dp) == LKS_OK, "ranks hold the same parameters")
        call infer(net, x, before)
        write(path, '(a,i0,a)') "test_fortran_", ranks, ".h5"
        code = lks_checkpoint_create(ctx, ck)
        if (code == LKS_OK) code = lks_checkpoint_set_params(ck, ps)
        if (code == LKS_OK) code = lks_checkpoint_set_optim(ck, opt)
        if (code == LKS_OK) code = lks_checkpoint_set_scaler(ck, scaler, LKS_STATE_REFUSE)
        if (code == LKS_OK) code = lks_checkpoint_set_i64(ck, "step", 200)
        if (code == LKS_OK) code = lks_checkpoint_save(ck, path)
        call ok(code == LKS_OK, "saved")
        code = lks_no_grad_begin(ctx)
        code = lks_fill_(lks_params_tensor(ps, 0), 0.0_real64)
        code = lks_no_grad_end(ctx)
        step_read = -1
        code = lks_checkpoint_load(ck, path)
        if (code == LKS_OK) code = lks_checkpoint_get_i64(ck, "step", step_read)
        call infer(net, x, after)
        call ok(code == LKS_OK .and. step_read == 200 .and. all(before == after), "loaded: the same outputs bit for bit")
        call lks_checkpoint_destroy(ck)
        call lks_dp_destroy(dp)
        call lks_scaler_destroy(scaler)
        call lks_optim_destroy(opt)
        call lks_module_destroy(net)
        call lks_params_destroy(ps)
        if (me == 0) then
            open(unit=9, file=path, status='old')
            close(9, status='delete')
        end if
    end subroutine

    subroutine points(step, x, y)
        integer, intent(in) :: step
        real(real32), intent(out) :: x(:, :), y(:, :)
        integer :: i
        do i = 1, size(x, 2)
            x(1, i) = real(mod(37 * (i + 64 * me + step), 101)) / 50.5 - 1
            x(2, i) = real(mod(53 * (i + 64 * me + step), 97)) / 48.5 - 1
            y(1, i) = sin(3 * x(1, i)) * x(2, i)
        end do
    end subroutine

    subroutine infer(net, x, y)
        type(lks_module), intent(in) :: net
        real(real32), intent(in) :: x(:, :)
        real(real32), intent(out) :: y(:, :)
        integer :: code
        code = lks_scope_begin(ctx)
        code = lks_no_grad_begin(ctx)
        call lks_module_train(net, 0)
        code = lks_to_array(lks_module_forward(net, lks_tensor_of(ctx, x, reversed=.true.)), y, reversed=.true.)
        if (code /= LKS_OK) y = huge(1.0)
        call lks_module_train(net, 1)
        code = lks_no_grad_end(ctx)
        code = lks_scope_end(ctx)
    end subroutine

    subroutine many
        type(lks_context) :: c
        integer :: i, code
        logical :: good
        good = .true.
        do i = 1, 100
            code = lks_context_create(MPI_COMM_WORLD, c, device="cpu", threads=1)
            good = good .and. code == LKS_OK
            code = lks_context_destroy(c)
            good = good .and. code == LKS_OK
        end do
        call ok(good, "made and ended a hundred times")
    end subroutine
end program
