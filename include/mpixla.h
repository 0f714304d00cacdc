/* libmpixla: MPI calls that XLA makes from inside a compiled program.
 *
 * The library holds one XLA FFI handler for each operation of its table. A front end (the Python package
 * mpixla is one) loads the library, once, into a process in which MPI is initialized, with MPI_THREAD_MULTIPLE, or with
 * MPI_THREAD_SERIALIZED if no two calls of MPI are made at once (XLA runs handlers in threads of its own), and
 *
 *   0. makes sure that they fit each other:   mpixla_abi_version
 *   1. describes that MPI:                    mpixla_start
 *   2. hands over the predefined handles:     mpixla_datatype_bind, mpixla_reduction_bind
 *   3. registers the handlers with XLA:       mpixla_op_table, mpixla_helper_table
 *   4. names communicators, user-made reductions and status objects by small numbers, which are what the
 *      compiled programs carry as attributes: mpixla_comm_register, mpixla_reduction_register,
 *      mpixla_status_register
 *
 * How programs call an operation stands before mpixla_op_row. At the end, when no program runs and before MPI_Finalize,
 * a front end calls mpixla_requests_end and mpixla_failures_end.
 *
 * No MPI header is needed to build or use it: MPI is found among the libraries that are already loaded.
 *
 * Unless said otherwise a function returns 0 (or a number that is not negative) on success and a negative
 * number on failure; mpixla_last_error then has one sentence that says what was wrong. All functions may be
 * called from any thread after mpixla_start has returned. Strings and tables that are returned belong to the
 * library and live as long as it is loaded; strings that are passed in are copied where they are kept. Leave the
 * library loaded until the process ends: MPI calls it back when a communicator is freed.
 */
#ifndef MPIXLA_H
#define MPIXLA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MPIXLA_API __attribute__((visibility("default")))

/* The version of this header's binary interface. It changes with whatever a front end that was built, or written, for
 * another one would misread: arguments, members of structs, the meaning of either. A new function, or a new member at
 * the end of a table's row, leaves it as it is. */
#define MPIXLA_ABI_VERSION 1
/* That of the library: if it is not MPIXLA_ABI_VERSION, call nothing else. */
MPIXLA_API int mpixla_abi_version(void);

/* Tables are arrays of rows. A table's function returns the first row, and sets `*rows` to how many there are and
 * `*row_size` (if it is not NULL) to the bytes from each to the next: more than the row has here, where the library is
 * newer. MPIXLA_NEXT_ROW is the row after this one. */
#define MPIXLA_NEXT_ROW(type, row, row_size) ((const type *)((const char *)(row) + (row_size)))

/* An MPI handle of either kind (int or pointer), widened: (mpixla_handle)(uintptr_t)MPI_COMM_WORLD. */
typedef uint64_t mpixla_handle;

/* What programs carry for MPI_ANY_SOURCE, MPI_ANY_TAG and MPI_PROC_NULL, for "no status object" and for "the status is
 * a further result, uint8, of at least status_size bytes": the same numbers under every MPI, so that a compiled program
 * does not depend on which MPI it was traced under. */
enum {
    MPIXLA_ANY_SOURCE = -1,
    MPIXLA_PROC_NULL = -2,
    MPIXLA_ANY_TAG = -1,
    MPIXLA_NO_STATUS = -1,
    MPIXLA_STATUS_RESULT = -2
};

/* The MPI of this process, as the front end knows it. */
typedef struct mpixla_mpi_facts {
    size_t struct_size;       /* sizeof(mpixla_mpi_facts) of the caller */
    const char *library;      /* file that is already loaded and through which dlsym finds MPI's functions; NULL: the
                                 program itself, which is linked with MPI or has loaded it for all (RTLD_GLOBAL) */
    int64_t handle_size;      /* sizeof(MPI_Comm) */
    int64_t status_size;      /* sizeof(MPI_Status), bytes */
    int64_t status_source;    /* at which of them it has the source, an int */
    int64_t status_tag;       /* and the tag */
    int64_t any_source;       /* MPI_ANY_SOURCE */
    int64_t any_tag;          /* MPI_ANY_TAG */
    int64_t tag_ub;           /* the greatest tag, which MPI_COMM_WORLD has as MPI_TAG_UB */
    int64_t proc_null;        /* MPI_PROC_NULL */
    int64_t in_place;         /* the address MPI_IN_PLACE */
    int64_t match_first;      /* 1: a receive from any rank must be matched by a probe first; else 0 */
    int64_t cart;             /* MPI_CART */
    int64_t graph;            /* MPI_GRAPH */
    int64_t dist_graph;       /* MPI_DIST_GRAPH */
    int64_t max_error_string; /* MPI_MAX_ERROR_STRING */
    int64_t err_truncate;     /* MPI_ERR_TRUNCATE */
    mpixla_handle comm_world; /* MPI_COMM_WORLD */
    mpixla_handle comm_self;  /* MPI_COMM_SELF */
} mpixla_mpi_facts;

/* Connects the library to the MPI of this process. Call it once, after MPI_Init. */
MPIXLA_API int mpixla_start(const mpixla_mpi_facts *facts);

/* The file descriptor to which the library writes why the job ends, and why a call waits: that of standard error,
 * unless something such as a test runner has that captured, and another one leads to people. */
MPIXLA_API void mpixla_output_set(int file);

/* Before MPI is started: a thread writes the sentence if mpixla_init_done has not been called after so many seconds.
 * Call it once. */
MPIXLA_API int mpixla_init_watch(double seconds, const char *sentence);
MPIXLA_API void mpixla_init_done(void);

/* What only the front end can do, for which it has a function: to say where its threads are
 * (mpixla_timeout_stack_give); and to flush what the program has printed, which is lost where another process ends the
 * job: all of it, when this process is about to end, or only what is in buffers of the front end's own, which any
 * thread may flush. A thread of the library's, which starts with the first wish, calls the functions. */
typedef enum mpixla_wish { MPIXLA_WISH_STACKS, MPIXLA_WISH_FLUSH, MPIXLA_WISH_FLUSH_OWN, MPIXLA_WISHES } mpixla_wish;
MPIXLA_API void mpixla_front_end_set(mpixla_wish wish, void (*grant)(void));
/* Before the front end ends: no function is called any more. Returns when none is under way. */
MPIXLA_API void mpixla_front_end_end(void);

/* Ends this process as the library does: what it has printed is flushed, then all others end through MPI_Abort if
 * `job`, and last the process itself, with this status. */
MPIXLA_API void mpixla_job_end(int status, int job);
/* The process ends with this status after so many seconds, by SIGALRM, whatever keeps it: a write to a terminal that
 * was stopped, MPI_Abort. */
MPIXLA_API void mpixla_job_limit(int seconds, int status);

/* The file that has MPI's functions, "" before mpixla_start. */
MPIXLA_API const char *mpixla_mpi_file(void);
/* The file of a tool that intercepts calls of MPI which move data, and so those of this library (PMPI); "": there is
 * none. */
MPIXLA_API const char *mpixla_mpi_tool(void);

/* The sentence for the last failure of a call in this thread; "" if there was none. */
MPIXLA_API const char *mpixla_last_error(void);

/* Data types: one row for each element type that XLA has. */
typedef struct mpixla_dtype_row {
    const char *name;     /* NumPy's name, "float32" */
    const char *mpi_name; /* the MPI datatype that moves it, "MPI_FLOAT" */
    const char *kind;     /* "bool", "integer", "float" or "complex" */
    int64_t itemsize;     /* bytes */
} mpixla_dtype_row;
MPIXLA_API const mpixla_dtype_row *mpixla_dtype_table(size_t *rows, size_t *row_size);
/* Gives the library the handle of an MPI datatype by its MPI name. Unknown names fail. A program that uses a data type
 * or reduction that has no handle is refused. */
MPIXLA_API int mpixla_datatype_bind(const char *mpi_name, mpixla_handle handle);

/* Reductions: the predefined ones are numbered by their row. */
typedef struct mpixla_reduction_row {
    const char *name;  /* "MPI_SUM" */
    const char *kinds; /* the kinds of data type that it takes, separated by blanks */
} mpixla_reduction_row;
MPIXLA_API const mpixla_reduction_row *mpixla_reduction_table(size_t *rows, size_t *row_size);
/* Gives the library the handle of a predefined reduction by its name. */
MPIXLA_API int mpixla_reduction_bind(const char *name, mpixla_handle handle);
/* The number of a user-made reduction: the same handle has the same number until it is freed; a freed reduction's
 * number is never used again. */
MPIXLA_API int64_t mpixla_reduction_register(mpixla_handle handle);
/* MPI does not tell that a reduction is freed. So the front end names a variable of its own, of type MPI_Op, that has
 * the handle until then, and keeps it valid for good. Returns 1 if the library looks at it from now on, 0 if it looks
 * at enough others. */
MPIXLA_API int mpixla_reduction_keep(int64_t id, const void *kept);
/* 1 if the reduction with this number can still be used, 0 if it was freed or never existed. */
MPIXLA_API int mpixla_reduction_is_alive(int64_t id);

/* The number of a communicator, counted in the order of first registration: the same communicator has the
 * same number however often it is registered, and a freed communicator's number is never used again. MPI_COMM_SELF is
 * number 0, the others are 1, 2 and so on: all ranks that register in the same order have the same programs.
 * `name` (may be NULL) is used in messages. Inter-communicators are refused.
 * Give XLA communicators of its own (MPI_Comm_dup), so that its messages do not meet those of the rest of the process,
 * and set MPI_ERRORS_RETURN on them: by default MPI ends the job where an error could be a sentence. A communicator may
 * be freed when no program that uses it runs. */
MPIXLA_API int64_t mpixla_comm_register(mpixla_handle handle, const char *name);
/* 1 if the communicator with this number can still be used, 0 if it was freed or never existed. */
MPIXLA_API int mpixla_comm_is_alive(int64_t id);
/* The rank at the end of these `steps`, MPIXLA_PROC_NULL beyond a wall: `size` numbers, in pairs, a direction of a
 * Cartesian communicator and by how many ranks, with each direction at most once. Of any other communicator the ranks
 * are a ring, and the direction is 0. Programs say so with "dest" or "source" as an array of these numbers. */
MPIXLA_API int mpixla_comm_shift(int64_t id, const int64_t *steps, int64_t size, int64_t *rank);
/* Which ranks of MPI_COMM_WORLD the processes of a communicator are, one for each of its ranks, in their order: for
 * reports. They are copied; later ones for the same communicator are ignored. */
MPIXLA_API int mpixla_comm_members_set(int64_t id, const int *world_ranks);

/* JAX's own collectives, through libmpixla_trampoline.so: a communicator for the next clique of devices for which XLA
 * asks that has this first device, and this process at this place (native/trampoline/calls.h). */
MPIXLA_API int mpixla_trampoline_offer(int64_t comm, int color, int key);
/* How many offers XLA has not taken yet. */
MPIXLA_API int mpixla_trampoline_offers(void);

/* The line of the user's source that calls with the attribute "site" come from, by a number that is the same on every
 * rank: "model.py:42 in step". 0 is no site. The first name that a number gets is kept. */
MPIXLA_API int mpixla_site_name(int64_t site, const char *text);
/* The site of calls that this thread makes from now on, where the program's own is MPIXLA_SITE_OF_THREAD: one program
 * for many lines. */
#define MPIXLA_SITE_OF_THREAD (-1)
MPIXLA_API void mpixla_site_call(int64_t site);

/* The number of an MPI_Status at this address, which the caller keeps valid for as long as programs that
 * carry the number may run. */
MPIXLA_API int64_t mpixla_status_register(void *address);

/* Operations: the handlers and how to call them.
 *
 * A handler is registered with XLA as the target "mpixla_" and the operation's name, host_handler for the platform
 * "Host", device_handler for "CUDA" and "ROCM": through XLA_FFI_Handler_Register (as the bundle's `execute`), through
 * the FFI extension of a PJRT plugin, or jax.ffi.register_ffi_target. Handlers answer XLA's question for their version
 * of the interface, and do nothing in stages other than that of execution.
 *
 * In StableHLO a call is a custom_call with api_version = 4 and the attributes in backend_config. Give it
 * has_side_effect, which keeps calls whose results nobody uses. Operands are the send buffer, then the template;
 * the result is the receive buffer; each where the table says so:
 *
 *   send      what a rank gives
 *   receive   what it gets
 *   template  has the type of the receive buffer, which keeps its values wherever no message arrives
 *   id        a request, two float32 numbers, from what starts something to what waits for it. Each request is
 *             waited for once: by wait if it gives an array, wait_recv if it receives a message, wait_send if it
 *             only sends. Further operands of these do nothing but make the wait come after them
 *   @root     only the root passes this buffer, @others: all but the root. So these have different programs
 *   in place  the receive buffer may be the send buffer's memory (output_operand_aliases). A rank without a send
 *             buffer may then pass that memory as its operand
 *
 * Buffers are row-major, and a handler is done with them when it returns. assert_replicated, halo_exchange and
 * halo_transpose take any number of arrays, and give as many. Counts must go together as in MPI's function of the
 * name, such as the result of allgather with as many items from each rank as the operand; what does not is refused.
 *
 * XLA starts a call when its operands are there, and knows nothing of the other ranks. A token from each call to the
 * next keeps calls in one order on all ranks, which MPI needs. Tokens are operands and results behind the buffers, as
 * many as you like or none: handlers pass over them. Without tokens the helper `order` makes order out of data. Calls
 * on one communicator from two threads at once need an order that all ranks share, or a communicator for each thread.
 *
 * Beside those of the table all take "comm", "packed" and "site". All must be given but for these two, each as a 64-bit
 * integer or an array of them. examples/c/operations.c prints the table:
 *
 *   operation         operands                      results                    attributes
 *   allgather         send                          receive                    -
 *   allgatherv        send                          receive                    counts
 *   allreduce         send                          receive, in place          op
 *   alltoall          send                          receive                    -
 *   alltoallv         send                          receive                    recvcounts sendcounts
 *   assert_replicated send                          receive                    checked leaves
 *   barrier           -                             -                          -
 *   bcast             send @root                    receive @others, in place  root
 *   exchange          send                          receive                    back recvcounts sendcounts sendoffsets
 *   exscan            send                          receive, in place          fill op reverse
 *   gather            send                          receive @root              root
 *   gatherv           send                          receive @root              counts root
 *   halo_exchange     send                          receive                    axes width
 *   halo_transpose    send                          receive                    axes width
 *   recv              template                      receive                    recvtag source status
 *   reduce            send                          receive @root, in place    op root
 *   reduce_scatter    send                          receive                    op
 *   scan              send                          receive, in place          op reverse
 *   scatter           send @root                    receive                    root
 *   scatterv          send @root                    receive                    counts root
 *   send              send                          -                          dest sendtag
 *   sendrecv          send, template                receive                    dest recvtag sendtag source status
 *   iallgather        send                          id                         -
 *   iallreduce        send                          id                         op
 *   ialltoall         send                          id                         -
 *   ibcast            send @root, template @others  id                         root
 *   irecv             template                      id                         recvtag source
 *   ireduce_scatter   send                          id                         op
 *   isend             send                          id                         dest sendtag
 *   isendrecv         send, template                id                         dest recvtag sendtag source
 *   wait              id                            receive                    -
 *   wait_recv         id, template                  receive                    -
 *   wait_send         id                            -                          -
 *
 *   comm         the number of a communicator
 *   op           the number of a reduction
 *   root         a rank
 *   dest, source  a rank, MPIXLA_PROC_NULL, or for a source MPIXLA_ANY_SOURCE; or an array: how far the rank is
 *                from here, as mpixla_comm_shift has it
 *   sendtag, recvtag  a tag; MPIXLA_ANY_TAG for the latter
 *   status       MPIXLA_NO_STATUS, MPIXLA_STATUS_RESULT, or a number from mpixla_status_register
 *   counts, sendcounts, recvcounts  an array: rows (of the first axis) for each rank, or for each neighbour
 *   sendoffsets  an array: the row of the send buffer at which those for each neighbour begin
 *   back         1: messages go the way back, to those that this rank's come from
 *   reverse      1: the ranks count from the last one
 *   fill         two numbers whose bytes, one behind the other, begin with those of the item that fills the
 *                first rank's result
 *   axes         an array: for each array the axis that belongs to each dimension of the Cartesian communicator
 *   width        an array: for each dimension the width of the ghost zones
 *   checked      1: the report says that checked mode asks, not the program; 2: that is told once, and no error
 *   leaves       an array: the number of each array's name, which mpixla_site_name takes
 *   packed       a number made of the parts that travel as one array, to be compared between ranks
 *   site         the number of a line of the user's source, for messages, which mpixla_site_name takes
 *
 * Where ranks, tags or rows are known only at run time, the attribute is the string "operand", and the numbers are in
 * one more operand behind all others, int32 or int64 with one axis, in the order of the attributes' names.
 *
 * A handler that fails gives XLA an error with one sentence, and calls no MPI if the call itself is wrong: see
 * mpixla_failures_seen. That does not end the other ranks, which wait in MPI: end the job (MPI_Abort) unless they know.
 *
 * Which ranks pass which buffer: */
typedef enum mpixla_where {
    MPIXLA_NOWHERE = 0, /* no rank has this buffer */
    MPIXLA_EVERYWHERE,  /* every rank */
    MPIXLA_ON_ROOT,     /* the root only */
    MPIXLA_OFF_ROOT     /* every rank but the root */
} mpixla_where;

/* What an operation does to a request: */
typedef enum mpixla_request {
    MPIXLA_COMPLETES = 0, /* nothing: its call is complete when it returns */
    MPIXLA_STARTS,        /* starts something. What it gives is the id of a request, two float32 numbers */
    MPIXLA_WAITS          /* waits for what was started. Its send buffer is the id, and operands beyond those of its row
                             do nothing but make the wait come after them */
} mpixla_request;

/* An XLA_FFI_Handler of XLA's c_api.h, without its types. */
typedef void mpixla_handler(void);

typedef struct mpixla_op_row {
    const char *name;               /* "allreduce"; the FFI target is "mpixla_" and this */
    const char *mpi_name;           /* "MPI_Allreduce" */
    mpixla_handler *host_handler;   /* for buffers in host memory */
    mpixla_handler *device_handler; /* for buffers in a GPU's, of any platform */
    mpixla_where send;              /* who passes a send buffer: the first operand */
    mpixla_where template_;         /* who passes a template: the operand after it; the result keeps its values
                                       wherever no message arrived */
    mpixla_where recv;              /* who passes a receive buffer: the result */
    uint32_t attributes;            /* bit i: takes attribute i of mpixla_attribute_table, an int64 scalar
                                       or an array of them */
    int in_place;                   /* 1: the receive buffer may be the first operand's memory; a rank without a send
                                       buffer may then pass that memory as its first operand */
    mpixla_request request;
} mpixla_op_row;
MPIXLA_API const mpixla_op_row *mpixla_op_table(size_t *rows, size_t *row_size);
/* The handler of the "instantiate" stage of every operation. With it, a call of a compiled program is read in its first
 * run only; without it, in each. */
MPIXLA_API mpixla_handler *mpixla_instantiate_handler(void);
/* Handlers that call no MPI; the target is "mpixla_" and the name.
 *
 *   exact_add    of an array of float32 or float64, or of two, makes int64 along the last axis: the words of the exact
 *            sum of each line, or of products; words of several processes are added
 *   exact_round  of such words makes a float32 or float64 for each line, rounded to so many "digits", none below
 *            2^"lowest", and to infinity beyond "largest", the bits of a double
 *   order    of an array makes a token, and of a token, with the array as a second operand and result in one memory,
 *            the array: so values that a program carries put its calls in order. Works on every device.
 *   pack     of operands of one type makes one array: along the last axis, with the axes before it kept
 *   rank     gives an int32, this process's rank in the communicator "comm", or the one at the end of the "shift",
 *            an array of steps as mpixla_comm_shift has them, or empty
 *   unpack   the other way of pack */
typedef struct mpixla_helper_row {
    const char *name;
    mpixla_handler *host_handler, *device_handler; /* as above */
} mpixla_helper_row;
MPIXLA_API const mpixla_helper_row *mpixla_helper_table(size_t *rows, size_t *row_size);
/* Says on standard error which requests were never waited for, and ends what MPI lets us end, so that MPI can be
 * finalized. Returns how many there were. Call it when no handler runs. */
MPIXLA_API int64_t mpixla_requests_end(void);

/* GPUs. A device handler communicates in the way that the ranks of a communicator find best, together, when they first
 * call on it with a GPU's memory: docs/gpu.md. */

/* 1 if this process can load a GPU's driver; else 0, and mpixla_last_error says why. */
MPIXLA_API int mpixla_gpu_is_possible(void);
/* Whether a rank of the job may use a GPU, and whether this one may. Call it before any handler runs, with the same
 * `in_job` on all ranks: where it is not 0, host handlers take part in what the ranks agree on. */
MPIXLA_API void mpixla_gpus_expect(int in_job, int here);
/* What the user wants: "auto", "nccl", "mpi" or "host". */
MPIXLA_API int mpixla_gpu_transport_set(const char *name);
/* Under "mpi", calls with a GPU's memory are refused from now on, for this reason: half a sentence. */
MPIXLA_API void mpixla_gpu_mpi_refuse(const char *why);
/* How many GPUs of a platform, "CUDA" or "ROCm", this process can use: 0 where its driver cannot be had, too. The
 * driver is started. */
MPIXLA_API int mpixla_gpu_count(const char *platform);
/* How collective calls on a communicator travel from a GPU's memory and why, in words, into `text` of this size. */
MPIXLA_API void mpixla_gpu_transport_describe(int64_t comm, char *text, size_t bytes);
/* Leaves NCCL, at the end of the process: call it on all ranks, when no handler runs and all programs are done. Fails
 * if NCCL has found a failure that no handler has seen. */
MPIXLA_API int mpixla_gpus_end(void);
/* A file to look for NCCL in, beside those of the system; before any handler runs. */
MPIXLA_API void mpixla_nccl_file_add(const char *file);
/* A file to take HIP from before one that the system finds; before anything asks for GPUs. */
MPIXLA_API void mpixla_hip_file_add(const char *file);
/* Larger arrays than this many bytes travel through the host in pieces of this size. Returns the size before; a size
 * that is not positive leaves it as it is. */
MPIXLA_API int64_t mpixla_gpu_piece_set(int64_t bytes);

/* From now on calls are compared between the ranks that make them, and those that do not fit are refused: collective
 * calls on all ranks, messages where they are received. "lines" compares all, "calls" all but the lines of the user's
 * source, "first" so the first collective calls of each communicator and those whose number is a power of two, and the
 * first messages on the communicator of mpixla_check_own_set, "off" nothing. What ranks tell each other travels on
 * `comm`, a duplicate of MPI_COMM_WORLD that nothing else uses but mpixla_timeout_set; types of messages are compared
 * on communicators of which mpixla_comm_members_set has said who is in them. Off before the first call; call it before
 * any handler runs, on all ranks. */
MPIXLA_API int mpixla_check_set(const char *mode, mpixla_handle comm);
/* Says that handlers alone communicate on this communicator, of which mpixla_comm_members_set has been called: so what
 * comes on it was sent by one, and the ranks can compare it. On all ranks, before any handler runs. Returns 0, or -1.
 */
MPIXLA_API int mpixla_check_own_set(int64_t comm);
/* How many are the first. */
MPIXLA_API int mpixla_check_first_calls(void);
/* Hears what other ranks still have to say, at the end. Call it when no handler runs, before mpixla_requests_end. */
MPIXLA_API void mpixla_check_end(void);

/* The attributes' names, in alphabetical order. */
MPIXLA_API const char *const *mpixla_attribute_table(size_t *rows);

/* The error classes with which this MPI says that a process has died (MPI_ERR_PROC_FAILED), that a receive from any
 * source may be for one that has died (MPI_ERR_PROC_FAILED_PENDING), and that a communicator was revoked
 * (MPI_ERR_REVOKED); 0 for those that it does not have. A call that fails with one of them says what to do. */
MPIXLA_API void mpixla_loss_classes_set(int failed, int pending, int revoked);

/* Debug lines on standard error, one when a call starts and one when it ends. Returns the setting before. */
MPIXLA_API int mpixla_logging_set(int on);

/* A timeline of this process: a file of records for `python -m mpixla.trace`, whole at any moment (docs/trouble.md). */
typedef struct mpixla_trace_facts {
    size_t struct_size;    /* sizeof(mpixla_trace_facts) of the caller */
    const char *directory; /* which exists, and gets rank-0003.trace */
    int64_t limit;         /* bytes, at least 64 KiB: what does not fit is left out, with a sentence */
    int64_t ranks;         /* of the job */
    const char *job;       /* tells runs apart, the same on all ranks */
    const char *clock;     /* the same on all ranks that have the same monotonic clock */
} mpixla_trace_facts;
/* From now on calls are written down, until mpixla_trace_end, which fails if the file could not take them all. */
MPIXLA_API int mpixla_trace_start(const mpixla_trace_facts *facts);
MPIXLA_API int mpixla_trace_end(void);
/* The clock of the timeline, in nanoseconds. */
MPIXLA_API int64_t mpixla_trace_now(void);
/* Writes into the timeline what was found of the clock: that at its time `when` rank 0's said `ahead` more, as well as
 * a message of this round trip can tell. All in nanoseconds. */
MPIXLA_API int mpixla_trace_clock(int64_t when, int64_t ahead, int64_t round_trip);

/* From now on handlers for host memory return before their calls have ended, where jaxlib lets them: threads of the
 * library's make the calls, so that none of XLA's threads waits in one. For programs in which XLA communicates too. */
MPIXLA_API void mpixla_calls_apart(void);

/* 0 if no handler that calls MPI runs at this moment, and all calls that are made apart have ended; else a number of
 * them, in which those made apart may count twice. */
MPIXLA_API int64_t mpixla_calls_in_flight(void);

/* A handler that fails hands XLA a sentence, and XLA hands it to whoever looks at the result. The front end tells the
 * library of each such text that it sees; it may have more in it than the sentence. A failure that nobody has looked at
 * is written on standard error when the next handler runs, and again by mpixla_failures_end, which returns how many.
 * Call that when no handler runs. */
MPIXLA_API void mpixla_failures_seen(const char *text);
/* XLA raises a failure straight away where the program runs on the thread that called it. `thread` returns NULL on all
 * other threads; it must not take a lock that the caller of XLA may have. */
MPIXLA_API void mpixla_failures_raised_on(void *(*thread)(void));
MPIXLA_API int64_t mpixla_failures_end(void);

/* This process was forked from one that runs MPI: handlers refuse to communicate from now on. */
MPIXLA_API void mpixla_forked(void);

/* For the end of the process, once: behind its exit handlers it calls MPI_Finalize, if none of them has, and if it ends
 * `badly` its exit status is 1, whatever it would have been. */
MPIXLA_API int mpixla_end_last(int badly);

/* From now on a thread of the library's calls MPI while requests are under way that nobody waits for, each time after
 * this many nanoseconds, so that messages move. Takes MPI_THREAD_MULTIPLE. Call it once, before any handler runs. */
MPIXLA_API int mpixla_progress_set(int64_t nanoseconds);

/* From now on collective calls of ranks that are on one host go through memory that they share, where that is faster.
 * Call it in all processes or in none, before any handler runs. */
MPIXLA_API void mpixla_local_start(void);

/* From now on SIGINT ends the process if a call that was inside MPI then has not ended 5 seconds later, which the front
 * end could not do; with `job` all of them, through MPI_Abort, which takes MPI_THREAD_MULTIPLE. A sentence says before
 * which call is waited for. The handler that the signal had still runs. Nothing happens where the signal is ignored or
 * has no handler. Call it once. */
MPIXLA_API int mpixla_interrupt_watch(int job);

/* A time limit. Once a call has waited for other ranks for longer, this rank writes a report of all ranks on standard
 * error and the job ends, through MPI_Abort with the code 124; or, without a limit, the job goes on after the report. A
 * call that waits for a rank which makes no more calls ends the job in any case. A process as others see it: */
typedef struct mpixla_process {
    const char *host; /* where its number means it: the same text in all processes that can see each other's */
    const char *name; /* of the host, for people */
    int64_t number;   /* getpid() */
} mpixla_process;
/* In seconds; where `limit` is 0, there is none, and `warn_after` is the time until a report. `processes` are those of
 * MPI_COMM_WORLD, in their order, and `comm` is a duplicate of it that is used for nothing else; 0 where MPI does not
 * have MPI_THREAD_MULTIPLE: then each process tells of itself alone. Call it once, on all ranks alike. MPI_Finalize
 * then waits until all have come to it. */
MPIXLA_API int mpixla_timeout_set(double limit, double warn_after, mpixla_handle comm, const mpixla_process *processes,
                                  int64_t count);
/* In the function for MPIXLA_WISH_STACKS: the lines of the front end's threads. `threads` is how many of them may still
 * call XLA or MPI: all but this one and those that wait for the result of a program. Without such a function no call to
 * itself is found to wait in vain. */
MPIXLA_API void mpixla_timeout_stack_give(const char *text, int64_t threads);
/* The program of this process has come to its end. */
MPIXLA_API void mpixla_timeout_ended(void);
/* It makes no call any more. Without this that is so from MPI_Finalize on. */
MPIXLA_API void mpixla_timeout_left(void);
/* Returns when the thread of the time limit is in MPI no more, nor will be. Other ranks are answered again once
 * MPI_Finalize has begun. Call it right before: MPICH 5.0 may abort if another thread is in MPI when MPI_Finalize
 * begins. */
MPIXLA_API void mpixla_timeout_stop(void);

/* Counts above this many elements use MPI's large-count functions. The default is INT_MAX; tests lower it.
 * Returns the limit before; a limit that is not positive, or greater than INT_MAX, leaves it as it is. */
MPIXLA_API int64_t mpixla_count_limit_set(int64_t limit);

#ifdef __cplusplus
}
#endif
#endif
