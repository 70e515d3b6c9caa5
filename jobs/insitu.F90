! SPDX-License-Identifier: BSD-3-Clause
!
! insitu.F90 - the twin of insitu.c in Fortran: a solver of its own (advection and diffusion, or Burgers' equation, two
! dims, periodic, explicit differences on strips of rows with halo exchange) trains a network on its running fields, on
! all ranks or on ranks set aside, is saved and goes on with it bit for bit, and hands steps over to it at the end.
! Same options, same files; the picture is the C program's. doc/insitu.md tells the story.
module insitu_host
    use, intrinsic :: iso_fortran_env, only: real32, real64, int64, error_unit
    use, intrinsic :: iso_c_binding
    use, intrinsic :: ieee_exceptions
    use mpi
    use lockstep
    implicit none

    integer, parameter :: R = 6, layers = 3 ! rows and columns that the network sees around a cell
    integer, parameter :: options = 21
    character(len=16), parameter :: names(options) = [character(len=16) :: "burgers", "nx", "ny", "members", "every", &
        "couplings", "width", "train-steps", "life", "train-ranks", "checkpoint-every", "resume", "stop-after", &
        "test", "sets", "shift", "replace", "threads", "trap", "seed", "picture"]
    integer :: burgers = 0, nx = 64, ny = 64, members = 4, every = 8, couplings = 400, width = 12, train_steps = 3, &
        life = 20, train_ranks = 0, checkpoint_every = 100, resume = 0, stop_after = 0, test = 20, sets = 1, &
        shift = 0, replace = 2, threads = 0, trap = 0, seed = 1
    real(real64) :: lr = 0.006_real64, viscosity = 0.005_real64, cfl = 0.4_real64
    character(len=1000) :: out = "insitu", device = "cpu"

    ! This rank's rows [first, first + rows) of ny, counted from 0.
    integer :: comm, rank, ranks, rows, first, components
    real(real64) :: dx, dy, dt
    real(real64), allocatable :: u(:, :, :, :), next(:, :, :, :), before(:, :, :, :) ! (nx + 2 R, rows + 2 R, C, M)

    type(lks_context) :: ctx
    type(lks_params) :: ps
    type(lks_module) :: layer(layers), linear
    type(lks_optim) :: opt
    type(lks_dp) :: dp
    type(lks_checkpoint) :: ckpt
    real(real64) :: scales(2) = 0 ! of fields, of their changes over a coupling; 0: not known yet
    real(real64) :: cost(5) = 0   ! solver, halos, hand-over, training, surrogate
    integer :: coupled = 0, applied = 0

    type pair
        real(real32), allocatable :: in(:, :, :, :), target(:, :, :, :)
    end type

contains

    subroutine die(what)
        character(len=*), intent(in) :: what
        integer :: ierr
        write (error_unit, '(2a)') "insitu: ", what
        if (c_associated(ctx%p)) write (error_unit, '(2a)') "insitu: ", lks_error(ctx)
        call MPI_Abort(MPI_COMM_WORLD, 1, ierr)
        stop 1
    end subroutine

    subroutine check(ierr, what)
        integer, intent(in) :: ierr
        character(len=*), intent(in) :: what
        if (ierr /= LKS_OK) call die(what)
    end subroutine

    ! --- the solver: knows nothing of networks ---

    subroutine share(n, parts, i, from, count)
        integer, intent(in) :: n, parts, i
        integer, intent(out) :: from, count
        from = i * (n / parts) + min(i, mod(n, parts))
        count = n / parts + merge(1, 0, i < mod(n, parts))
    end subroutine

    subroutine strip_open()
        integer :: ierr
        call MPI_Comm_rank(comm, rank, ierr)
        call MPI_Comm_size(comm, ranks, ierr)
        call share(ny, ranks, rank, first, rows)
        if (ny / ranks < R) call die("a strip is thinner than the halo: take more rows (--ny) or fewer ranks")
        components = merge(2, 1, burgers == 1)
        dx = 1.0_real64 / nx
        dy = 1.0_real64 / ny
        dt = cfl / (1 / dx + 1 / dy + 2 * viscosity * (1 / dx**2 + 1 / dy**2)) ! |u| <= 1
        allocate(u(1-R:nx+R, 1-R:rows+R, components, members), source=0.0_real64)
        allocate(next, before, source=u)
    end subroutine

    ! Fills n rows and columns around the strip from the neighbours.
    subroutine halo(n)
        integer, intent(in) :: n
        real(real64), allocatable :: send(:, :, :, :), get(:, :, :, :)
        real(real64) :: t
        integer :: up, down, count, ierr
        t = MPI_Wtime()
        up = mod(rank + 1, ranks)
        down = mod(rank + ranks - 1, ranks)
        count = nx * n * components * members
        allocate(get(nx, n, components, members))
        send = u(1:nx, 1:n, :, :)
        call MPI_Sendrecv(send, count, MPI_DOUBLE_PRECISION, down, 1, get, count, MPI_DOUBLE_PRECISION, up, 1, comm, &
            MPI_STATUS_IGNORE, ierr)
        u(1:nx, rows+1:rows+n, :, :) = get
        send = u(1:nx, rows-n+1:rows, :, :)
        call MPI_Sendrecv(send, count, MPI_DOUBLE_PRECISION, up, 2, get, count, MPI_DOUBLE_PRECISION, down, 2, comm, &
            MPI_STATUS_IGNORE, ierr)
        u(1:nx, 1-n:0, :, :) = get
        u(1-n:0, :, :, :) = u(nx-n+1:nx, :, :, :)
        u(nx+1:nx+n, :, :, :) = u(1:n, :, :, :)
        cost(2) = cost(2) + MPI_Wtime() - t
    end subroutine

    ! One explicit step: upwind differences, central diffusion; no value leaves the range of its neighbours.
    subroutine solver_step()
        integer :: i, j, c, m
        real(real64) :: wx, wy, ax, ay, cx, cy, mx, my
        real(real64), allocatable :: swap(:, :, :, :)
        call halo(1)
        cx = dt / dx
        cy = dt / dy
        mx = viscosity * dt / dx**2
        my = viscosity * dt / dy**2
        do m = 1, members
            do c = 1, components
                do j = 1, rows
                    do i = 1, nx
                        wx = 1
                        wy = 0.5_real64
                        if (burgers == 1) then
                            wx = u(i, j, 1, m)
                            wy = u(i, j, 2, m)
                        end if
                        if (wx > 0) then
                            ax = wx * (u(i, j, c, m) - u(i-1, j, c, m))
                        else
                            ax = wx * (u(i+1, j, c, m) - u(i, j, c, m))
                        end if
                        if (wy > 0) then
                            ay = wy * (u(i, j, c, m) - u(i, j-1, c, m))
                        else
                            ay = wy * (u(i, j+1, c, m) - u(i, j, c, m))
                        end if
                        next(i, j, c, m) = u(i, j, c, m) - cx * ax - cy * ay + &
                            mx * (u(i-1, j, c, m) - 2 * u(i, j, c, m) + u(i+1, j, c, m)) + &
                            my * (u(i, j-1, c, m) - 2 * u(i, j, c, m) + u(i, j+1, c, m))
                    end do
                end do
            end do
        end do
        call move_alloc(u, swap)
        call move_alloc(next, u)
        call move_alloc(swap, next)
    end subroutine

    function draw(state) result(x) ! Park & Miller, 1988: the same numbers in both languages
        integer(int64), intent(inout) :: state
        real(real64) :: x
        state = mod(state * 16807_int64, 2147483647_int64)
        x = real(state, real64) / 2147483647.0_real64
    end function

    ! A state of few waves, |u| <= 1, chosen by (seed, number, member); members are counted from 0 here. more is added
    ! to the wave numbers.
    subroutine start(member, number, more)
        integer, intent(in) :: member, number, more
        integer(int64) :: state
        real(real64) :: a(0:15), phase(0:15), pi2, v, x
        integer :: c, w, i, j, kx, ky
        pi2 = 2 * acos(-1.0_real64)
        do c = 0, components - 1
            state = 1 + mod(seed * 7919_int64 + number * 104729_int64 + member * 1299709_int64 + c * 15485863_int64, &
                2147483646_int64)
            do w = 1, 20
                x = draw(state)
            end do
            do w = 0, 15
                kx = mod(w, 4)
                ky = w / 4 - 1
                a(w) = draw(state) / (1 + kx * kx + ky * ky)
                phase(w) = pi2 * draw(state)
            end do
            do j = 1, rows
                do i = 1, nx
                    v = 0
                    do w = 0, 15
                        v = v + a(w) * sin(pi2 * ((mod(w, 4) + more) * (i - 0.5_real64) * dx + &
                            (w / 4 - 1 + more) * (first + j - 0.5_real64) * dy) + phase(w))
                    end do
                    u(i, j, c + 1, member + 1) = v / sum(a)
                end do
            end do
        end do
    end subroutine

    ! --- the network: cells and their neighbourhood in, change over a coupling out ---

    subroutine network_open(training)
        logical, intent(in) :: training
        integer :: ierr, i, c
        character(len=16) :: name
        character(len=:), allocatable :: message
        ierr = lks_context_create(comm, ctx, device=trim(device), threads=threads, seed=int(seed, int64), &
            message=message)
        if (ierr /= LKS_OK) call die(message)
        c = merge(2, 1, burgers == 1)
        ierr = lks_params_create(ctx, ps)
        do i = 1, layers
            write (name, '(a,i0)') "layer.", i - 1
            if (ierr == LKS_OK) ierr = lks_conv2d_create(ps, trim(name), merge(c, width, i == 1), &
                merge(c, width, i == layers), 5, 1, 0, 1, layer(i))
        end do
        if (ierr == LKS_OK) ierr = lks_conv2d_create(ps, "linear", c, c, 2 * R + 1, 1, 0, 0, linear)
        if (training) then
            if (ierr == LKS_OK) ierr = lks_optim_create(ps, LKS_ADAM, opt)
            if (ierr == LKS_OK) ierr = lks_optim_set_lr(opt, -1, lr)
            if (ierr == LKS_OK) ierr = lks_optim_set_schedule(opt, LKS_SCHEDULE_COSINE, 10, couplings * train_steps, &
                0.02_real64, 0.0_real64, 1)
            if (ierr == LKS_OK) ierr = lks_dp_create(ps, 0, dp)
            if (ierr == LKS_OK) ierr = lks_dp_set_nominal(dp, real(members, real64) * nx * ny)
        end if
        if (ierr == LKS_OK) ierr = lks_checkpoint_create(ctx, ckpt)
        if (ierr == LKS_OK) ierr = lks_checkpoint_set_params(ckpt, ps)
        if (ierr == LKS_OK .and. training) ierr = lks_checkpoint_set_optim(ckpt, opt)
        call check(ierr, "building the network")
    end subroutine

    subroutine network_close()
        integer :: i, ierr
        call lks_checkpoint_destroy(ckpt)
        call lks_dp_destroy(dp)
        call lks_optim_destroy(opt)
        do i = 1, layers
            call lks_module_destroy(layer(i))
        end do
        call lks_module_destroy(linear)
        call lks_params_destroy(ps)
        ierr = lks_context_destroy(ctx)
    end subroutine

    ! [M, C, rows + 2 R, nx + 2 R], scaled -> [M, C, rows, nx]: one linear stencil, and what it cannot say.
    function forward(x) result(y)
        type(lks_tensor), intent(in) :: x
        type(lks_tensor) :: y, straight
        integer :: i
        straight = lks_module_forward(linear, x)
        y = x
        do i = 1, layers
            y = lks_module_forward(layer(i), y)
            if (i < layers) y = lks_gelu(y, 1)
        end do
        y = lks_add(straight, y)
    end function

    ! Optimizer steps on the strips that this rank has. Arrays (nx, rows, C, M) reversed are what convolutions want.
    subroutine network_train(p)
        type(pair), intent(in), target :: p(:)
        type(lks_tensor) :: loss
        real(real64) :: t
        integer :: step, k, ierr
        t = MPI_Wtime()
        do step = 1, train_steps
            ierr = lks_scope_begin(ctx)
            if (ierr == LKS_OK) ierr = lks_params_zero_grad(ps)
            do k = 1, size(p)
                loss = lks_mse_loss(forward(lks_tensor_of(ctx, p(k)%in, reversed=.true.)), &
                    lks_tensor_of(ctx, p(k)%target, reversed=.true.), LKS_REDUCTION_SUM)
                if (ierr == LKS_OK) ierr = lks_dp_backward(dp, loss=loss, last=merge(1, 0, k == size(p)), &
                    weight=real(members, real64) * nx * size(p(k)%target, 2))
            end do
            if (ierr == LKS_OK) ierr = lks_optim_step(opt)
            if (ierr == LKS_OK) ierr = lks_scope_end(ctx)
            call check(ierr, "training")
        end do
        cost(4) = cost(4) + MPI_Wtime() - t
    end subroutine

    ! The network in place of `every` solver steps.
    subroutine surrogate_step()
        real(real32), allocatable, target :: x(:, :, :, :), y(:, :, :, :)
        real(real64) :: t
        integer :: ierr
        t = MPI_Wtime()
        call halo(R)
        x = real(u / scales(1), real32)
        allocate(y(nx, rows, components, members))
        ierr = lks_scope_begin(ctx)
        if (ierr == LKS_OK) ierr = lks_no_grad_begin(ctx)
        if (ierr == LKS_OK) ierr = lks_to_array(forward(lks_tensor_of(ctx, x, reversed=.true.)), y, reversed=.true.)
        call check(ierr, "the surrogate")
        ierr = lks_no_grad_end(ctx)
        ierr = lks_scope_end(ctx)
        u(1:nx, 1:rows, :, :) = u(1:nx, 1:rows, :, :) + scales(2) * real(y, real64)
        cost(5) = cost(5) + MPI_Wtime() - t
        applied = applied + 1
    end subroutine

    ! --- solver and network at one step ---

    function solver_path(coupling) result(path)
        integer, intent(in) :: coupling
        character(len=1100) :: path
        write (path, '(a,"/solver-",i8.8,".h5")') trim(out), coupling
    end function

    ! Rows (column, component, member, row): each rank's are neighbours in the file.
    subroutine solver_save(coupling)
        integer, intent(in) :: coupling
        real(real64), allocatable, target :: v(:, :, :, :)
        type(lks_output) :: o
        integer :: ierr, j, unit
        logical :: old
        allocate(v(nx, components, members, rows))
        do j = 1, rows
            v(:, :, :, j) = u(1:nx, j, :, :)
        end do
        ierr = lks_output_create(ctx, trim(solver_path(coupling)), "u", LKS_F64, [ny, members, components, nx], o)
        if (ierr == LKS_OK) ierr = lks_output_write(o, first, rows, c_loc(v))
        ierr = lks_agree(ctx, ierr)
        if (ierr == LKS_OK) ierr = lks_output_finish(o)
        call check(ierr, "saving the field")
        call lks_output_destroy(o)
        if (rank /= 0 .or. coupling <= 3 * checkpoint_every) return
        inquire(file=trim(solver_path(coupling - 3 * checkpoint_every)), exist=old)
        if (.not. old) return ! the network's file is what makes a pair; the two before it are kept
        open(newunit=unit, file=trim(solver_path(coupling - 3 * checkpoint_every)))
        close(unit, status="delete")
    end subroutine

    subroutine solver_load(coupling)
        integer, intent(in) :: coupling
        real(real64), allocatable, target :: v(:, :, :, :)
        type(lks_loader) :: l
        type(lks_tensor) :: in, same
        integer(int64) :: got, from
        integer :: ierr, j
        character(len=1100) :: paths(1)
        paths(1) = solver_path(coupling)
        allocate(v(nx, components, members, rows))
        ierr = lks_loader_hdf5(ctx, [trim(paths(1))], "u", "u", 0.0_real64, l)
        if (ierr == LKS_OK) ierr = lks_loader_set_wide(l, 1) ! double as double
        if (ierr == LKS_OK) ierr = lks_scope_begin(ctx)
        if (ierr == LKS_OK) ierr = lks_loader_rows(l, 0, ny, in, same, got, from) ! shared out as strips are
        call check(ierr, "reading the field")
        if (got /= rows .or. from /= first) call die("the field in the checkpoint has another size")
        ierr = lks_to_array(in, v, reversed=.true.)
        call check(ierr, "reading the field")
        ierr = lks_scope_end(ctx)
        call lks_loader_destroy(l)
        do j = 1, rows
            u(1:nx, j, :, :) = v(:, :, :, j)
        end do
    end subroutine

    function kept() result(v)
        integer :: v(9)
        v = [burgers, nx, ny, members, every, width, life, seed, couplings]
    end function

    function key(i) result(name)
        integer, intent(in) :: i
        character(len=9) :: name
        character(len=9), parameter :: all(9) = [character(len=9) :: "burgers", "nx", "ny", "members", "every", &
            "width", "life", "seed", "couplings"]
        name = all(i)
    end function

    subroutine network_save(coupling)
        integer, intent(in) :: coupling
        integer :: ierr, i, v(9)
        v = kept()
        ierr = LKS_OK
        do i = 1, size(v)
            if (ierr == LKS_OK) ierr = lks_checkpoint_set_i64(ckpt, trim(key(i)), v(i))
        end do
        if (ierr == LKS_OK) ierr = lks_checkpoint_set_f64(ckpt, "in_scale", scales(1))
        if (ierr == LKS_OK) ierr = lks_checkpoint_set_f64(ckpt, "out_scale", scales(2))
        if (ierr == LKS_OK) ierr = lks_checkpoint_save_step(ckpt, trim(out), coupling, 2)
        call check(ierr, "saving the network")
    end subroutine

    ! Coupling that the newest pair is of; 0: there is none.
    subroutine network_load(from)
        integer, intent(out) :: from
        character(len=4096) :: path
        integer(int64) :: step, value
        integer :: ierr, i, v(9)
        from = 0
        v = kept()
        ierr = lks_checkpoint_latest(ctx, trim(out), path, step)
        if (ierr == LKS_ERR_NOT_FOUND) then
            call lks_error_clear(ctx)
            return
        end if
        if (ierr == LKS_OK) ierr = lks_checkpoint_peek(ckpt, trim(path))
        do i = 1, size(v)
            if (ierr == LKS_OK) ierr = lks_checkpoint_get_i64(ckpt, trim(key(i)), value)
            if (ierr == LKS_OK .and. value /= v(i)) then
                write (error_unit, '(3a,i0)') "insitu: --", trim(key(i)), " was ", value
                call die("the checkpoint is of another problem")
            end if
        end do
        if (ierr == LKS_OK) ierr = lks_checkpoint_load(ckpt, trim(path))
        if (ierr == LKS_OK) ierr = lks_checkpoint_get_f64(ckpt, "in_scale", scales(1))
        if (ierr == LKS_OK) ierr = lks_checkpoint_get_f64(ckpt, "out_scale", scales(2))
        call check(ierr, "resuming")
        from = int(step)
    end subroutine

    ! --- a coupling ---

    function inner(a) result(v)
        real(real64), intent(in) :: a(1-R:, 1-R:, :, :)
        real(real64), allocatable :: v(:, :, :, :)
        v = a(1:nx, 1:rows, :, :)
    end function

    function mean_square(v) result(m)
        real(real64), intent(in) :: v(:, :, :, :)
        real(real64) :: m, s(2)
        integer :: ierr
        s = [sum(v**2), real(size(v), real64)]
        call MPI_Allreduce(MPI_IN_PLACE, s, 2, MPI_DOUBLE_PRECISION, MPI_SUM, comm, ierr)
        m = s(1) / s(2)
    end function

    ! `every` solver steps; the fields before and after, scaled, into p.
    subroutine couple(p)
        type(pair), intent(inout) :: p
        real(real64) :: t, exchanged, most
        integer :: k, ierr
        call halo(R)
        before = u
        t = MPI_Wtime()
        exchanged = cost(2)
        do k = 1, every
            call solver_step()
        end do
        most = maxval(abs(u(1:nx, 1:rows, :, :)))
        call MPI_Allreduce(MPI_IN_PLACE, most, 1, MPI_DOUBLE_PRECISION, MPI_MAX, comm, ierr)
        if (.not. most <= 1.5_real64) call die("the field has grown beyond what the time step allows")
        cost(1) = cost(1) + MPI_Wtime() - t - (cost(2) - exchanged)
        t = MPI_Wtime()
        if (scales(1) <= 0) scales = [sqrt(mean_square(inner(before))), sqrt(mean_square(inner(u - before)))]
        p%in = real(before / scales(1), real32)
        p%target = real((u(1:nx, 1:rows, :, :) - before(1:nx, 1:rows, :, :)) / scales(2), real32)
        cost(3) = cost(3) + MPI_Wtime() - t
        coupled = coupled + 1
    end subroutine

    subroutine renew(coupling)
        integer, intent(in) :: coupling
        integer :: m
        do m = 0, members - 1
            if (mod(coupling + m * life / members, life) == 0) call start(m, coupling, 0)
        end do
    end subroutine

    logical function due(c)
        integer, intent(in) :: c
        due = mod(c, checkpoint_every) == 0 .or. c == couplings
    end function

    ! Solver and training take turns on every rank.
    subroutine run_together(from)
        integer, intent(in) :: from
        type(pair), target :: p(1)
        integer :: c
        do c = from + 1, couplings
            call couple(p(1))
            call renew(c)
            call network_train(p)
            if (due(c)) then
                call solver_save(c)
                call network_save(c)
            end if
            if (c == stop_after) exit
        end do
    end subroutine

    ! Ranks that step: strip i goes to trainer mod(i, trainers) while the next coupling is computed.
    subroutine run_solver(from, trainer)
        integer, intent(in) :: from, trainer
        type(pair), target, asynchronous :: p(0:1)
        real(real64), asynchronous :: sent(2)
        real(real64) :: t
        integer :: c, k, ierr, rq(3)
        rq = MPI_REQUEST_NULL
        do c = from + 1, couplings
            k = mod(c, 2)
            call couple(p(k))
            call renew(c)
            if (due(c)) call solver_save(c) ! before the network of this coupling can be saved
            t = MPI_Wtime()
            call MPI_Waitall(3, rq, MPI_STATUSES_IGNORE, ierr) ! the trainers are one coupling behind at most
            sent = scales
            call MPI_Isend(sent, 2, MPI_DOUBLE_PRECISION, trainer, 10, MPI_COMM_WORLD, rq(1), ierr)
            call MPI_Isend(p(k)%in, size(p(k)%in), MPI_REAL, trainer, 11, MPI_COMM_WORLD, rq(2), ierr)
            call MPI_Isend(p(k)%target, size(p(k)%target), MPI_REAL, trainer, 12, MPI_COMM_WORLD, rq(3), ierr)
            cost(3) = cost(3) + MPI_Wtime() - t
            if (c == stop_after) exit
        end do
        call MPI_Waitall(3, rq, MPI_STATUSES_IGNORE, ierr)
    end subroutine

    ! Ranks set aside: the strips of some solver ranks are the micro-batches of a step.
    subroutine run_trainer(from, solvers, me)
        integer, intent(in) :: from, solvers, me
        type(pair), allocatable, target :: p(:)
        integer :: c, i, k, count, at, n, ierr
        count = (solvers - me + train_ranks - 1) / train_ranks
        n = merge(2, 1, burgers == 1)
        allocate(p(count))
        do k = 1, count
            call share(ny, solvers, me + (k - 1) * train_ranks, at, i)
            allocate(p(k)%in(nx + 2 * R, i + 2 * R, n, members), p(k)%target(nx, i, n, members))
        end do
        do c = from + 1, couplings
            do k = 1, count
                i = me + (k - 1) * train_ranks
                call MPI_Recv(scales, 2, MPI_DOUBLE_PRECISION, i, 10, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
                call MPI_Recv(p(k)%in, size(p(k)%in), MPI_REAL, i, 11, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
                call MPI_Recv(p(k)%target, size(p(k)%target), MPI_REAL, i, 12, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierr)
            end do
            call network_train(p)
            if (due(c)) call network_save(c)
            if (c == stop_after) exit
        end do
    end subroutine

    ! The trainers' weights and scales to every rank, from `root` of the world.
    subroutine share_weights(root)
        integer, intent(in) :: root
        real(real32), allocatable, target :: v(:)
        type(lks_tensor) :: t
        integer :: i, me, ierr
        call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
        do i = 0, lks_params_count(ps) - 1
            t = lks_params_tensor(ps, i)
            allocate(v(lks_numel(t)))
            if (me == root) call check(lks_to_host(t, c_loc(v), 4 * size(v)), "sending weights")
            call MPI_Bcast(v, size(v), MPI_REAL, root, MPI_COMM_WORLD, ierr)
            ierr = lks_no_grad_begin(ctx)
            call check(lks_set_from_host(t, c_loc(v), 4 * size(v)), "taking weights")
            ierr = lks_no_grad_end(ctx)
            deallocate(v)
        end do
        call MPI_Bcast(scales, 2, MPI_DOUBLE_PRECISION, root, MPI_COMM_WORLD, ierr)
    end subroutine

    ! --- what came of it ---

    function relative(guess, truth) result(e)
        real(real64), intent(in) :: guess(:, :, :, :), truth(:, :, :, :)
        real(real64) :: e, mean
        integer :: ierr
        mean = sum(truth) / (real(nx, real64) * ny * members * components)
        call MPI_Allreduce(MPI_IN_PLACE, mean, 1, MPI_DOUBLE_PRECISION, MPI_SUM, comm, ierr)
        e = sqrt(mean_square(guess - truth) / (mean_square(truth) - mean**2))
    end function

    ! States that training has not seen: solver alone, surrogate alone, and both in turn.
    subroutine report()
        real(real64), allocatable :: begin(:, :, :, :), truth(:, :, :, :)
        real(real64) :: e(3), per
        integer :: c, k, m, set, replaced
        do set = 0, sets - 1
            do m = 0, members - 1
                call start(m, -1 - m - set * members, shift)
            end do
            begin = u
            do c = 1, test * every
                call solver_step()
            end do
            truth = inner(u)
            u = begin
            do c = 1, test
                call surrogate_step()
            end do
            e(1) = relative(inner(u), truth)
            u = begin
            replaced = 0
            do c = 1, test
                if (mod(c, replace) == 0) then
                    call surrogate_step()
                    replaced = replaced + 1
                else
                    do k = 1, every
                        call solver_step()
                    end do
                end if
            end do
            e(2) = relative(inner(u), truth)
            e(3) = relative(inner(begin), truth)
            if (rank == 0) print '(a,i0,a,i0,a,f0.2,a,i0,a,f0.2,a,f0.0,a)', "unseen states, ", test, &
                " couplings of ", every, " steps: error of the surrogate alone ", 100 * e(1), " %, of ", replaced, &
                " couplings replaced ", 100 * e(2), " % (of doing nothing ", 100 * e(3), " %)"
        end do
        if (rank /= 0) return
        per = 1e3_real64 / max(1, coupled)
        print '(a,f0.3,a,f0.3,a,f0.3,a,f0.3,a,f0.3)', "ms a coupling: solver ", cost(1) * per, ", halos ", &
            cost(2) * per, ", hand-over ", cost(3) * per, ", training ", cost(4) * per, "; the surrogate instead ", &
            1e3_real64 * cost(5) / max(1, applied)
    end subroutine

    ! --- options ---

    subroutine usage(bad)
        character(len=*), intent(in) :: bad
        integer :: i
        if (len(bad) > 0) write (error_unit, '(3a)') "insitu: what is ", bad, "?"
        print '(a)', "usage: insitu [--OPTION VALUE]...", "Options, as insitu (C) --help explains them:"
        do i = 1, options
            print '(2a)', "  --", trim(names(i))
        end do
        print '(a)', "  --lr", "  --viscosity", "  --cfl", "  --device", "  --out"
        if (len(bad) > 0) stop 2
        stop
    end subroutine

    subroutine parse()
        character(len=1000) :: name, value
        integer :: i, bad
        i = 1
        do while (i <= command_argument_count())
            call get_command_argument(i, name)
            if (name == "--help") call usage("")
            call get_command_argument(i + 1, value)
            if (i == command_argument_count()) call usage(trim(name))
            bad = 0
            select case (name)
            case ("--burgers"); read (value, *, iostat=bad) burgers
            case ("--nx"); read (value, *, iostat=bad) nx
            case ("--ny"); read (value, *, iostat=bad) ny
            case ("--members"); read (value, *, iostat=bad) members
            case ("--every"); read (value, *, iostat=bad) every
            case ("--couplings"); read (value, *, iostat=bad) couplings
            case ("--width"); read (value, *, iostat=bad) width
            case ("--train-steps"); read (value, *, iostat=bad) train_steps
            case ("--life"); read (value, *, iostat=bad) life
            case ("--train-ranks"); read (value, *, iostat=bad) train_ranks
            case ("--checkpoint-every"); read (value, *, iostat=bad) checkpoint_every
            case ("--resume"); read (value, *, iostat=bad) resume
            case ("--stop-after"); read (value, *, iostat=bad) stop_after
            case ("--test"); read (value, *, iostat=bad) test
            case ("--sets"); read (value, *, iostat=bad) sets
            case ("--shift"); read (value, *, iostat=bad) shift
            case ("--replace"); read (value, *, iostat=bad) replace
            case ("--threads"); read (value, *, iostat=bad) threads
            case ("--trap"); read (value, *, iostat=bad) trap
            case ("--seed"); read (value, *, iostat=bad) seed
            case ("--lr"); read (value, *, iostat=bad) lr
            case ("--viscosity"); read (value, *, iostat=bad) viscosity
            case ("--cfl"); read (value, *, iostat=bad) cfl
            case ("--device"); device = value
            case ("--out"); out = value
            case ("--picture"); continue
            case default; call usage(trim(name))
            end select
            if (bad /= 0) call usage(trim(name) // " " // trim(value))
            i = i + 2
        end do
        if (nx < R .or. ny < R .or. min(members, every, couplings, width, life, train_steps, checkpoint_every, test, &
            sets, replace) < 1 .or. train_ranks < 0 .or. cfl <= 0 .or. cfl >= 1 .or. viscosity < 0 .or. seed < 0) &
            call usage("one of the values")
        if (mod(life, members) /= 0) call usage("--life (a multiple of members)")
    end subroutine
end module

program insitu
    use insitu_host
    implicit none
    integer :: me, all, solvers, root, from, m, ierr
    logical :: training, stepping, halting

    call parse()
    call MPI_Init(ierr)
    call MPI_Comm_rank(MPI_COMM_WORLD, me, ierr)
    call MPI_Comm_size(MPI_COMM_WORLD, all, ierr)
    if (train_ranks > all / 2) call die("--train-ranks takes more than half of the ranks")
    if (trap == 1) call ieee_set_halting_mode([ieee_overflow, ieee_divide_by_zero, ieee_invalid], .true.)
    if (me == 0) call execute_command_line("mkdir -p '" // trim(out) // "'")
    call MPI_Barrier(MPI_COMM_WORLD, ierr)

    solvers = all - train_ranks
    training = train_ranks == 0 .or. me >= solvers
    stepping = me < solvers
    root = merge(solvers, 0, train_ranks > 0)
    call MPI_Comm_split(MPI_COMM_WORLD, merge(1, 0, train_ranks > 0 .and. training), me, comm, ierr)
    call network_open(training)
    from = 0
    if (resume == 1 .and. training) call network_load(from)
    call MPI_Bcast(from, 1, MPI_INTEGER, root, MPI_COMM_WORLD, ierr)
    if (from > 0) call share_weights(root) ! for the scales
    if (stepping) then
        call strip_open()
        if (from > 0) then
            call solver_load(from)
        else
            do m = 0, members - 1
                call start(m, 0, 0)
            end do
        end if
    end if
    if (me == 0 .and. from > 0) print '(a,i0)', "going on after coupling ", from
    if (train_ranks == 0) then
        call run_together(from)
    else if (training) then
        call run_trainer(from, solvers, me - solvers)
    else
        call run_solver(from, solvers + mod(rank, train_ranks))
    end if
    if (stop_after > 0 .and. stop_after < couplings) then
        if (me == 0) print '(a,i0)', "stopped after coupling ", stop_after
    else
        if (train_ranks > 0) call share_weights(root)
        if (stepping) call report()
    end if
    call network_close()
    call MPI_Comm_free(comm, ierr)
    if (trap == 1) then
        call ieee_get_halting_mode(ieee_invalid, halting)
        if (.not. halting) call die("the host's floating-point environment was changed")
    end if
    call MPI_Finalize(ierr)
end program
