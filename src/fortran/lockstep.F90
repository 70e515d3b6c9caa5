! SPDX-License-Identifier: BSD-3-Clause
!
! lockstep.F90 - Lockstep for Fortran: one module. What stands here is what differs from C: contexts from either kind of
! communicator handle, arrays of any rank without copies, texts. The rest of the API, function by function, is made
! from the public headers by generate.awk, whose head says how C's arguments become Fortran's; the headers stay the
! manual. Status functions are called as `ierr = lks_...`; lks_error(ctx) is the text of the first failure.
!
! Arrays. lks_tensor_of(ctx, a) copies an array, lks_wrap_array(ctx, a) lends it (no copy, sections too; on the CPU
! device only), lks_to_array(t, a) copies back. A tensor has the array's own order of indices: a(i, j) is t[i-1, j-1],
! its strides are column-major. With reversed=.true. the order of indices is reversed: u(nx, ny, nb) is t[nb, ny, nx],
! row-major in memory, which is what convolutions and data sets (batch first) want.
module lockstep
    use, intrinsic :: iso_c_binding
#ifdef LKS_MPI_F08
    use mpi_f08, only: MPI_Comm
#endif
    implicit none
    private

    type, public :: lks_config
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_context
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_tensor
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_params
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_module
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_scaler
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_optim
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_dp
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_loader
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_output
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_checkpoint
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_graph
        type(c_ptr) :: p = c_null_ptr
    end type
    type, public :: lks_custom
        type(c_ptr) :: p = c_null_ptr
    end type

    include 'lks_constants.inc'

    public :: lks_context_create, lks_none, lks_failed
    public :: lks_shape, lks_stride, lks_loader_input_shape
    public :: lks_tensor_of, lks_wrap_array, lks_to_array, lks_from_array
    include 'lks_public.inc'

    interface
        include 'lks_interfaces.inc'
        function c_create(comm, config, ctx) bind(c, name="lks_context_create_f")
            import :: c_int, c_ptr
            integer(c_int), value :: comm
            type(c_ptr), value :: config
            type(c_ptr), intent(inout) :: ctx
            integer(c_int) :: c_create
        end function
        function c_shape(t) bind(c, name="lks_shape")
            import :: c_ptr
            type(c_ptr), value :: t
            type(c_ptr) :: c_shape
        end function
        function c_stride(t) bind(c, name="lks_stride")
            import :: c_ptr
            type(c_ptr), value :: t
            type(c_ptr) :: c_stride
        end function
        function c_input_shape(l) bind(c, name="lks_loader_input_shape")
            import :: c_ptr
            type(c_ptr), value :: l
            type(c_ptr) :: c_input_shape
        end function
        ! arrays.c: the only place that reads array descriptors
        function c_array_tensor(ctx, a, lend, reversed) bind(c, name="lksf_tensor_of")
            import :: c_ptr, c_int
            type(c_ptr), value :: ctx
            type(*), intent(in), target :: a(..)
            integer(c_int), value :: lend, reversed
            type(c_ptr) :: c_array_tensor
        end function
        function c_array_take(t, a, reversed) bind(c, name="lksf_to_array")
            import :: c_ptr, c_int
            type(c_ptr), value :: t
            type(*), intent(inout) :: a(..)
            integer(c_int), value :: reversed
            integer(c_int) :: c_array_take
        end function
        function c_array_set(t, a, reversed) bind(c, name="lksf_from_array")
            import :: c_ptr, c_int
            type(c_ptr), value :: t
            type(*), intent(in), target :: a(..)
            integer(c_int), value :: reversed
            integer(c_int) :: c_array_set
        end function
        function c_absent() bind(c, name="lksf_none")
            import :: c_ptr
            type(c_ptr) :: c_absent
        end function
        function c_strlen(s) bind(c, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: s
            integer(c_size_t) :: c_strlen
        end function
    end interface

    interface lks_context_create
        module procedure create_handle
#ifdef LKS_MPI_F08
        module procedure create_f08
#endif
    end interface

    include 'lks_generics.inc'

contains

    ! --- contexts ---

    ! A context on a duplicate of comm (an integer handle, as `use mpi` and mpif.h have it). Options as those of
    ! lks_config_set_...; message: why it failed. Collective.
    function create_handle(comm, ctx, device, threads, seed, deadline, message) result(ierr)
        integer, intent(in) :: comm
        type(lks_context), intent(inout) :: ctx
        character(len=*), intent(in), optional :: device
        integer(c_int), intent(in), optional :: threads
        integer(c_int64_t), intent(in), optional :: seed
        real(c_double), intent(in), optional :: deadline
        character(len=:), allocatable, intent(out), optional :: message
        integer(c_int) :: ierr
        type(c_ptr) :: config
        config = c_config_new()
        ierr = LKS_ERR_MEMORY
        if (.not. c_associated(config)) return
        ierr = LKS_OK
        if (present(device)) ierr = c_config_set_device(config, c_string(device))
        if (ierr == LKS_OK .and. present(threads)) ierr = c_config_set_threads(config, threads)
        if (ierr == LKS_OK .and. present(seed)) ierr = c_config_set_seed(config, seed)
        if (ierr == LKS_OK .and. present(deadline)) ierr = c_config_set_deadline(config, deadline)
        ! Also with an option refused: the other ranks are in this call, and are told.
        if (ierr == LKS_OK) ierr = c_create(int(comm, c_int), config, ctx%p)
        if (present(message)) message = f_string(c_config_message(config))
        call c_config_free(config)
    end function

#ifdef LKS_MPI_F08
    ! The same from `use mpi_f08`.
    function create_f08(comm, ctx, device, threads, seed, deadline, message) result(ierr)
        type(MPI_Comm), intent(in) :: comm
        type(lks_context), intent(inout) :: ctx
        character(len=*), intent(in), optional :: device
        integer(c_int), intent(in), optional :: threads
        integer(c_int64_t), intent(in), optional :: seed
        real(c_double), intent(in), optional :: deadline
        character(len=:), allocatable, intent(out), optional :: message
        integer(c_int) :: ierr
        ierr = create_handle(comm%MPI_VAL, ctx, device, threads, seed, deadline, message)
    end function
#endif

    ! --- tensors ---

    ! Stands for an absent optional tensor.
    function lks_none() result(t)
        type(lks_tensor) :: t
        t%p = c_absent()
    end function

    ! .true. if the op that should have made t failed; lks_error(ctx) says why.
    function lks_failed(t) result(failed)
        type(lks_tensor), intent(in) :: t
        logical :: failed
        failed = .not. c_associated(t%p)
    end function

    function lks_shape(t) result(s)
        type(lks_tensor), intent(in) :: t
        integer(c_int64_t), allocatable :: s(:)
        s = counts_at(c_shape(t%p), c_ndim(t%p))
    end function

    function lks_stride(t) result(s)
        type(lks_tensor), intent(in) :: t
        integer(c_int64_t), allocatable :: s(:)
        s = counts_at(c_stride(t%p), c_ndim(t%p))
    end function

    function lks_loader_input_shape(l) result(s)
        type(lks_loader), intent(in) :: l
        integer(c_int64_t), allocatable :: s(:)
        s = counts_at(c_input_shape(l%p), c_loader_input_ndim(l%p))
    end function

    ! New tensor with the elements of a: real32, real64, integer of 32 or 64 bits, any rank and section. Local.
    function lks_tensor_of(ctx, a, reversed) result(t)
        type(lks_context), intent(in) :: ctx
        type(*), intent(in), target :: a(..)
        logical, intent(in), optional :: reversed
        type(lks_tensor) :: t
        t%p = c_array_tensor(ctx%p, a, 0_c_int, flag(reversed))
    end function

    ! The array itself as a tensor: no copy; it must outlive the tensor and have the target attribute. Sections with
    ! negative strides are refused. CPU device only. Local.
    function lks_wrap_array(ctx, a, reversed) result(t)
        type(lks_context), intent(in) :: ctx
        type(*), intent(in), target :: a(..)
        logical, intent(in), optional :: reversed
        type(lks_tensor) :: t
        t%p = c_array_tensor(ctx%p, a, 1_c_int, flag(reversed))
    end function

    ! Copies t into a (same dtype and shape). Waits for the device. Local.
    function lks_to_array(t, a, reversed) result(ierr)
        type(lks_tensor), intent(in) :: t
        type(*), intent(inout) :: a(..)
        logical, intent(in), optional :: reversed
        integer(c_int) :: ierr
        ierr = c_array_take(t%p, a, flag(reversed))
    end function

    ! Overwrites t's elements with a's (same dtype and shape). Local.
    function lks_from_array(t, a, reversed) result(ierr)
        type(lks_tensor), intent(in) :: t
        type(*), intent(in), target :: a(..)
        logical, intent(in), optional :: reversed
        integer(c_int) :: ierr
        ierr = c_array_set(t%p, a, flag(reversed))
    end function

    ! --- what the generated procedures use ---

    function flag(l) result(i)
        logical, intent(in), optional :: l
        integer(c_int) :: i
        i = 0
        if (present(l)) i = merge(1_c_int, 0_c_int, l)
    end function

    function counts_at(p, n) result(s)
        type(c_ptr), intent(in) :: p
        integer(c_int), intent(in) :: n
        integer(c_int64_t), allocatable :: s(:)
        integer(c_int64_t), pointer :: at(:)
        if (.not. c_associated(p) .or. n <= 0) then
            allocate(s(0))
            return
        end if
        call c_f_pointer(p, at, [n])
        s = at
    end function

    function c_string(s) result(c)
        character(len=*), intent(in) :: s
        character(len=len_trim(s)+1, kind=c_char) :: c
        c = trim(s) // c_null_char
    end function

    function f_string(p) result(s)
        type(c_ptr), intent(in) :: p
        character(len=:), allocatable :: s
        character(kind=c_char), pointer :: c(:)
        integer :: i, n
        n = 0
        if (c_associated(p)) n = int(c_strlen(p))
        allocate(character(len=n) :: s)
        if (n == 0) return
        call c_f_pointer(p, c, [n])
        do i = 1, n
            s(i:i) = c(i)
        end do
    end function

    subroutine copy_string(c, s)
        character(kind=c_char), intent(in) :: c(:)
        character(len=*), intent(out) :: s
        integer :: i
        s = ''
        do i = 1, min(len(s), size(c))
            if (c(i) == c_null_char) return
            s(i:i) = c(i)
        end do
    end subroutine

    function tensor_or_none(t) result(p)
        type(lks_tensor), intent(in), optional :: t
        type(c_ptr) :: p
        p = c_absent()
        if (present(t)) p = t%p
    end function

    function scaler_or_null(s) result(p)
        type(lks_scaler), intent(in), optional :: s
        type(c_ptr) :: p
        p = c_null_ptr
        if (present(s)) p = s%p
    end function

    function config_or_null(s) result(p)
        type(lks_config), intent(in), optional :: s
        type(c_ptr) :: p
        p = c_null_ptr
        if (present(s)) p = s%p
    end function

    function ints_in(a) result(n)
        integer(c_int), intent(in), optional :: a(:)
        integer(c_int) :: n
        n = 0
        if (present(a)) n = size(a, kind=c_int)
    end function

    function longs_in(a) result(n)
        integer(c_int64_t), intent(in), optional :: a(:)
        integer(c_int) :: n
        n = 0
        if (present(a)) n = size(a, kind=c_int)
    end function

    function doubles_in(a) result(n)
        real(c_double), intent(in), optional :: a(:)
        integer(c_int) :: n
        n = 0
        if (present(a)) n = size(a, kind=c_int)
    end function

    include 'lks_procedures.inc'
end module
