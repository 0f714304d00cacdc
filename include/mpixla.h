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
/* Returns the library's own version: if it is not MPIXLA_ABI_VERSION, call nothing else. */
MPIXLA_API int mpixla_abi_version(void);

/* Tables are arrays of rows. A table's function returns the first row, and sets `*rows` to how many there are and
 * `*row_size` (if it is not NULL) to the bytes from each to the next: more than the row has here, where the library is
 * newer. MPIXLA_NEXT_ROW is the row after this one. */
#define MPIXLA_NEXT_ROW(type, row, row_size) ((const type *)((const char *)(row) + (row_size)))

/* An MPI handle of either kind (int or pointer), widened: (mpixla_handle)(uintptr_t)MPI_COMM_WORLD. */
typedef uint64_t mpixla_handle;

/* The values of attributes that stand for MPI_ANY_SOURCE, MPI_ANY_TAG and MPI_PROC_NULL, for "no status object", for
 * "the status is a further result, uint8, of at least status_size bytes", and for "the message's source, tag and length
 * are a further result, three int32 or int64", which are this MPI's numbers, and items of the receive buffer: the same
 * values under every MPI, so that a compiled program does not depend on the MPI under which it was traced. */
enum {
    MPIXLA_ANY_SOURCE = -1,
    MPIXLA_PROC_NULL = -2,
    MPIXLA_ANY_TAG = -1,
    MPIXLA_NO_STATUS = -1,
    MPIXLA_STATUS_RESULT = -2,
    MPIXLA_STATUS_NUMBERS = -3
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

/* Sets the file descriptor to which the library writes why the job ends and why a call waits. The default is standard
 * error; a test runner may have captured that, and then another descriptor leads to people. */
MPIXLA_API void mpixla_output_set(int file);
/* Writes a sentence there; gives up after some seconds if nothing takes it. */
MPIXLA_API void mpixla_output_write(const char *text);

/* Starts a thread that writes the sentence if mpixla_init_done has not been called after so many seconds. Call it once,
 * before MPI is started. */
MPIXLA_API int mpixla_init_watch(double seconds, const char *sentence);
MPIXLA_API void mpixla_init_done(void);

/* The callbacks of a front end. STACKS: reports where its threads are (mpixla_timeout_stack_give). FLUSH: flushes all
 * output of the program, which would be lost when another process ends the job; called when this process is about to
 * end. FLUSH_OWN: flushes only buffers of the front end that any thread may flush. A thread of the library calls them;
 * it starts with the first callback that is set. */
typedef enum mpixla_wish { MPIXLA_WISH_STACKS, MPIXLA_WISH_FLUSH, MPIXLA_WISH_FLUSH_OWN, MPIXLA_WISHES } mpixla_wish;
MPIXLA_API void mpixla_front_end_set(mpixla_wish wish, void (*grant)(void));
/* Removes the callbacks before the front end ends. Returns when none is running. */
MPIXLA_API void mpixla_front_end_end(void);

/* Flushes the program's output, ends all other processes through MPI_Abort if `job`, and then this process with this
 * status. */
MPIXLA_API void mpixla_job_end(int status, int job);
/* Ends the process with this status after so many seconds, by SIGALRM, even if it blocks in MPI_Abort, or in a write to
 * a terminal that was stopped. */
MPIXLA_API void mpixla_job_limit(int seconds, int status);

/* Returns the file that has MPI's functions; "" before mpixla_start. */
MPIXLA_API const char *mpixla_mpi_file(void);
/* Returns the file of a tool that intercepts this library's calls of MPI (PMPI); "" if there is none. */
MPIXLA_API const char *mpixla_mpi_tool(void);

/* Returns the sentence of the last failure in this thread; "" if there was none. */
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
/* Returns the number of a user-made reduction, and registers it if it is new: the same for the same handle until it is
 * freed, and never used again. Predefined reductions, whose numbers are their rows, are not looked for. */
MPIXLA_API int64_t mpixla_reduction_register(mpixla_handle handle);
/* Names a variable of the front end's, of type MPI_Op, that has the reduction's handle until it is freed, which MPI
 * does not report. The variable must stay valid for good. Returns 1 if the library reads it from now on, 0 if it reads
 * enough others. */
MPIXLA_API int mpixla_reduction_keep(int64_t id, const void *kept);
/* Returns 1 if the reduction with this number can still be used, 0 if it was freed or never existed. */
MPIXLA_API int mpixla_reduction_is_alive(int64_t id);

/* Returns the number of a communicator, counted in the order of first registration: the same communicator has the
 * same number however often it is registered, and a freed communicator's number is never used again. MPI_COMM_SELF is
 * number 0, the others are 1, 2 and so on: all ranks that register in the same order have the same programs.
 * `name` (may be NULL) is used in messages. Inter-communicators are refused.
 * Give XLA communicators of its own (MPI_Comm_dup), so that its messages do not meet those of the rest of the process,
 * and set MPI_ERRORS_RETURN on them: by default MPI ends the job, where the library would report an error. A
 * communicator may be freed when no program that uses it runs. */
MPIXLA_API int64_t mpixla_comm_register(mpixla_handle handle, const char *name);
/* Returns 1 if the communicator with this number can still be used, 0 if it was freed or never existed. */
MPIXLA_API int mpixla_comm_is_alive(int64_t id);
/* Finds the rank at the end of these `steps`; MPIXLA_PROC_NULL beyond a wall. `steps` has `size` numbers, in pairs: a
 * direction of a Cartesian communicator, each at most once, and a number of ranks. The ranks of any other communicator
 * are a ring, with direction 0. A program gives these numbers as an array for "dest" or "source". */
MPIXLA_API int mpixla_comm_shift(int64_t id, const int64_t *steps, int64_t size, int64_t *rank);
/* Sets the ranks in MPI_COMM_WORLD of a communicator's processes, in the order of its ranks, for reports. They are
 * copied; a second call for the same communicator is ignored. */
MPIXLA_API int mpixla_comm_members_set(int64_t id, const int *world_ranks);

/* Sets `*rank` and `*size` to this process's rank in a communicator, and to its size; MPIXLA_WORLD is MPI_COMM_WORLD.
 */
#define MPIXLA_WORLD (-1)
MPIXLA_API int mpixla_comm_place(int64_t id, int *rank, int *size);

/* A call outside of XLA, on buffers in the host's memory: native/trampoline/ makes those of JAX's own collectives. It
 * takes the same ways as a handler's call, and is in the same reports, but ranks do not compare it. Nothing is kept. */
typedef struct mpixla_call {
    const char *name;   /* of the operation: "allgather", "allreduce", "reduce_scatter", "sendrecv", or another that
                           has no other attributes than these members; not used for a message */
    const char *caller; /* whose call it is, for MPI's errors: "JAX's "; or NULL */
    int64_t comm;       /* the number of a communicator */
    int dtype;          /* XLA's number of the element type of both buffers */
    const void *send;   /* the send buffer, of `sent` items */
    void *recv;         /* the receive buffer, of `received` items */
    int64_t sent, received;
    int64_t op; /* the number of a reduction */
    int64_t dest, sendtag, source, recvtag;
} mpixla_call;
/* Makes the call, and returns when it is complete. */
MPIXLA_API int mpixla_call_make(const mpixla_call *call);
/* Starts a message: to `dest` if the call has a send buffer, else from `source`. Sets `*request` to MPI's handle. The
 * buffer must stay as it is until mpixla_message_wait, which gets the same call, has returned. */
MPIXLA_API int mpixla_message_start(const mpixla_call *call, mpixla_handle *request);
/* Waits for a message of mpixla_message_start. */
MPIXLA_API int mpixla_message_wait(const mpixla_call *call, mpixla_handle *request);

/* Names a site, the line of the user's source that calls with this "site" attribute come from: "model.py:42 in step".
 * The number is the same on every rank; 0 is no site. The first name of a number is kept. */
MPIXLA_API int mpixla_site_name(int64_t site, const char *text);
/* Sets the site of later calls of this thread in programs whose site is MPIXLA_SITE_OF_THREAD: one program for many
 * lines. */
#define MPIXLA_SITE_OF_THREAD (-1)
MPIXLA_API void mpixla_site_call(int64_t site);

/* Returns a number for the MPI_Status at this address, which must stay valid for as long as programs with this number
 * may run. */
MPIXLA_API int64_t mpixla_status_register(void *address);

/* Operations: the handlers and how to call them.
 *
 * A handler is registered with XLA as the target "mpixla_" and the operation's name, host_handler for the platform
 * "Host", device_handler for "CUDA", "ROCM" and "ONEAPI": through XLA_FFI_Handler_Register (as the bundle's `execute`),
 * through the FFI extension of a PJRT plugin, or jax.ffi.register_ffi_target. Handlers answer XLA's question for their
 * version of the interface, and do nothing in stages other than that of execution.
 *
 * In StableHLO a call is a custom_call with api_version = 4 and the attributes in backend_config. Give it
 * has_side_effect, which keeps calls whose results nobody uses. Operands are the send buffer, then the template;
 * the result is the receive buffer; each where the table says so:
 *
 *   send      the array that a rank sends
 *   receive   the array that it gets
 *   template  has the type of the receive buffer, which keeps its values wherever no message arrives
 *   id        a request, two float32 numbers, from the call that starts it to the call that waits for it. Each
 *             request is waited for once: by wait if it gives an array, wait_recv if it receives a message, wait_send
 *             if it only sends. Further operands of these calls only make the wait come after them
 *   @root     only the root passes this buffer, @others: all but the root. So these have different programs
 *   in place  the receive buffer may be the send buffer's memory (output_operand_aliases). A rank without a send
 *             buffer may then pass that memory as its operand
 *
 * Buffers are row-major, and a handler is done with them when it returns. assert_replicated, halo_exchange and
 * halo_transpose take any number of arrays, and give as many. Counts must fit as in MPI's function of the name: the
 * result of allgather has as many items from each rank as the operand. Other calls are refused.
 *
 * XLA starts a call when its operands are there, and knows nothing of the other ranks. A token from each call to the
 * next keeps calls in one order on all ranks, which MPI needs. Tokens are operands and results behind the buffers, as
 * many as you like or none: handlers pass over them. Without tokens the helper `order` makes order out of data. Calls
 * on one communicator from two threads at once need an order that all ranks share, or a communicator for each thread.
 *
 * Beside those of the table all take "comm", "packed" and "site"; send and sendrecv take "sendbegin" and "sendsize";
 * recv and sendrecv take "fill", "recvbegin" and "recvsize"; wait_recv takes "status". All of the table and "comm" must
 * be given, each as a 64-bit integer or an array of them; the rest may be left out.
 * examples/c/operations.c prints the table:
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
 *   ialltoallv        send                          id                         recvcounts sendcounts
 *   ibarrier          -                             id                         -
 *   ibcast            send @root, template @others  id                         root
 *   iexscan           send                          id                         op reverse
 *   igather           send                          id                         root
 *   irecv             template                      id                         recvtag source
 *   ireduce           send                          id                         op root
 *   ireduce_scatter   send                          id                         op
 *   iscan             send                          id                         op reverse
 *   iscatter          send @root, template @others  id                         root
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
 *   status       MPIXLA_NO_STATUS, MPIXLA_STATUS_RESULT, MPIXLA_STATUS_NUMBERS, or a number from
 *                mpixla_status_register; of wait_recv MPIXLA_NO_STATUS, which is its default, or MPIXLA_STATUS_NUMBERS
 *   counts, sendcounts, recvcounts  an array: rows (of the first axis) for each rank, or for each neighbour
 *   sendoffsets  an array: the row of the send buffer at which those for each neighbour begin
 *   back         1: messages go the way back, to those that this rank's come from
 *   reverse      1: the ranks count from the last one
 *   fill         two numbers whose bytes, one behind the other, begin with those of the item that fills the
 *                first rank's result; or the rest of a window
 *   sendbegin, sendsize  arrays: the message is a box of the send buffer, with this first index and so many along each
 *                axis, which is read where it lies. A send may have that buffer as a result, in its memory
 *                (output_operand_aliases), so that computations wait for the send
 *   recvbegin, recvsize  likewise for the message that is received: it is written into the template, whose memory must
 *                be the receive buffer's (output_operand_aliases) or is copied there. Where no message arrives, the box
 *                keeps its values, or is filled. A call with both boxes and one array sends from it
 *   axes         an array: for each array the axis that belongs to each dimension of the Cartesian communicator
 *   width        an array: for each dimension the width of the ghost zones
 *   checked      1: the report says that checked mode asks, not the program; 2: that is told once, and no error
 *   leaves       an array: the number of each array's name, which mpixla_site_name takes
 *   packed       a number made of the parts that travel as one array, to be compared between ranks
 *   site         the number of a line of the user's source, for messages, which mpixla_site_name takes
 *
 * Where ranks, tags or rows are known only at run time, the attribute is the string "operand", and the numbers are in
 * one more operand behind all others, int32 or int64 with one axis, in the order of the attributes' names. Those of
 * ialltoallv are known before.
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

/* The effect of an operation on a request: */
typedef enum mpixla_request {
    MPIXLA_COMPLETES = 0, /* nothing: its call is complete when it returns */
    MPIXLA_STARTS,        /* starts something. Its result is the id of a request, two float32 numbers */
    MPIXLA_WAITS          /* waits for a request. Its send buffer is the id, and operands beyond those of its row only
                             make the wait come after them */
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
    uint32_t optional; /* bit i: attribute i may be left out */
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
/* Prints the requests that were never waited for on standard error, and ends those that MPI allows to end, so that MPI
 * can be finalized. Returns their number. Call it when no handler runs. */
MPIXLA_API int64_t mpixla_requests_end(void);

/* GPUs. The ranks of a communicator agree on a transport in their first call with a GPU's memory: docs/gpu.md. */

/* Returns 1 if this process can load a GPU's driver; else 0, and mpixla_last_error says why. */
MPIXLA_API int mpixla_gpu_is_possible(void);
/* Sets whether some rank of the job may use a GPU, and whether this one may. Call it before any handler runs, with the
 * same `in_job` on all ranks: unless it is 0, calls with the host's memory take part in the ranks' agreement. */
MPIXLA_API void mpixla_gpus_expect(int in_job, int here);
/* Sets the transport that the user asks for: "auto", "nccl", "mpi" or "host". */
MPIXLA_API int mpixla_gpu_transport_set(const char *name);
/* Refuses calls with a GPU's memory under "mpi" from now on; `why` is half a sentence. */
MPIXLA_API void mpixla_gpu_mpi_refuse(const char *why);
/* Starts the driver of a platform, "CUDA", "ROCm" or "SYCL", and returns how many of its GPUs this process can use; 0
 * without the driver. */
MPIXLA_API int mpixla_gpu_count(const char *platform);
/* Describes how collective calls with a GPU's memory travel on a communicator, and why, in `text` of this size. */
MPIXLA_API void mpixla_gpu_transport_describe(int64_t comm, char *text, size_t bytes);
/* Frees NCCL's communicators at the end of the process. Call it on all ranks, when no handler runs and all programs are
 * done. Fails if NCCL has found an error that no handler has reported. */
MPIXLA_API int mpixla_gpus_end(void);
/* Adds a file in which to look for NCCL, beside those of the system. Call it before any handler runs. */
MPIXLA_API void mpixla_nccl_file_add(const char *file);
/* Adds a file from which to take HIP before the system's. Call it before any question about GPUs. */
MPIXLA_API void mpixla_hip_file_add(const char *file);
/* Adds dpctl's C interface to SYCL (libDPCTLSyclInterface.so), which is looked for nowhere else. Call it before any
 * question about GPUs. */
MPIXLA_API void mpixla_sycl_file_add(const char *file);
/* Sets the bytes above which arrays travel through the host in pieces of that size. Returns the size before; a size
 * that is not positive changes nothing. */
MPIXLA_API int64_t mpixla_gpu_piece_set(int64_t bytes);

/* Compares calls between the ranks that make them, and refuses calls that do not fit: collective calls on all ranks,
 * messages on the receiver. `mode` is "lines": everything; "calls": everything but the lines of the user's source;
 * "first": the same, of the first collective calls of each communicator, of those whose number is a power of two, and
 * of the first messages on the communicator of mpixla_check_own_set; "off", the default: nothing. The ranks' own
 * messages travel on `comm`, a duplicate of MPI_COMM_WORLD that is used for nothing else but mpixla_timeout_set. Types
 * of messages are compared on communicators whose members are known (mpixla_comm_members_set). Call it on all ranks,
 * before any handler runs. */
MPIXLA_API int mpixla_check_set(const char *mode, mpixla_handle comm);
/* Names the communicator on which handlers alone communicate, and whose members are known (mpixla_comm_members_set):
 * each of its messages was sent by a handler, so it can be compared. Call it on all ranks, before any handler runs. */
MPIXLA_API int mpixla_check_own_set(int64_t comm);
/* Returns how many calls count as the first. */
MPIXLA_API int mpixla_check_first_calls(void);
/* Ends comparisons that are under way, and prints the differences that they find; waits for other ranks for at most 30
 * seconds. Call it when no handler runs, before mpixla_requests_end. */
MPIXLA_API void mpixla_check_end(void);

/* Returns the attributes' names, in alphabetical order. */
MPIXLA_API const char *const *mpixla_attribute_table(size_t *rows);

/* Sets the values of MPI_ERR_PROC_FAILED, MPI_ERR_PROC_FAILED_PENDING and MPI_ERR_REVOKED, the error classes for the
 * death of a process, under this MPI; 0 for a class that it does not have. The error of a call that fails with one of
 * them says what to do. */
MPIXLA_API void mpixla_loss_classes_set(int failed, int pending, int revoked);

/* Turns debug lines on standard error on or off, one at the start of a call and one at its end. Returns the setting
 * before. */
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
/* Begin and end the recording of calls. mpixla_trace_end fails if the file lacks some of them. */
MPIXLA_API int mpixla_trace_start(const mpixla_trace_facts *facts);
MPIXLA_API int mpixla_trace_end(void);
/* Returns the time of the timeline's clock, in nanoseconds. */
MPIXLA_API int64_t mpixla_trace_now(void);
/* Records that at this clock's time `when` rank 0's clock was `ahead` of it, measured by a message with this round
 * trip. All in nanoseconds. */
MPIXLA_API int mpixla_trace_clock(int64_t when, int64_t ahead, int64_t round_trip);

/* Makes the calls of host handlers on threads of the library from now on. The handlers return before their calls have
 * ended, if jaxlib allows it: so no thread of XLA waits in one. For programs in which XLA communicates, too. */
MPIXLA_API void mpixla_calls_apart(void);

/* Returns how many handlers that call MPI are running, and calls of mpixla_calls_apart have not ended; one of the
 * latter may count twice. */
MPIXLA_API int64_t mpixla_calls_in_flight(void);

/* Failures. A handler that fails gives XLA a sentence, and XLA raises it when the result is read. The front end reports
 * the text of each error that it sees, which may have more in it than the sentence (mpixla_failures_seen). A failure
 * that nobody has seen is written on standard error when the next handler runs, and again by mpixla_failures_end, which
 * returns their number; call that when no handler runs. */
MPIXLA_API void mpixla_failures_seen(const char *text);
/* Sets a function that returns NULL on all threads but those that have called XLA: XLA raises a failure at once if the
 * program runs on the thread that called it. The function must not take a lock that the caller of XLA may have. */
MPIXLA_API void mpixla_failures_raised_on(void *(*thread)(void));
MPIXLA_API int64_t mpixla_failures_end(void);

/* Refuses all calls of handlers from now on, for a process that was forked from one that runs MPI. */
MPIXLA_API void mpixla_forked(void);

/* Calls MPI_Finalize after all exit handlers of the process, unless one of them has done so. `badly`: the exit status
 * of the process becomes 1. Call it once. */
MPIXLA_API int mpixla_end_last(int badly);

/* Starts a thread that drives MPI's progress, once in so many nanoseconds, while there are active requests that no call
 * waits for. It takes MPI_THREAD_MULTIPLE. Call it once, before any handler runs. */
MPIXLA_API int mpixla_progress_set(int64_t nanoseconds);

/* Lets ranks of one host communicate through memory that they share, where that is faster. Call it in all processes or
 * in none, before any handler runs. */
MPIXLA_API void mpixla_local_start(void);

/* Ends the process after SIGINT if a call that was inside MPI at the signal has not ended 5 seconds later, which a
 * front end cannot do. Ends all processes with `job`, through MPI_Abort, which takes MPI_THREAD_MULTIPLE. A sentence
 * names that call before. The signal's own handler still runs. Nothing happens if the signal is ignored or has no
 * handler. Call it once.
 */
MPIXLA_API int mpixla_interrupt_watch(int job);

/* A time limit. Once a call has waited for other ranks for longer, this rank writes a report of all ranks on standard
 * error and the job ends, through MPI_Abort with the code 124; or, without a limit, the job goes on after the report. A
 * call that waits for a rank which makes no more calls ends the job in any case. A process as the others know it: */
typedef struct mpixla_process {
    const char *host; /* the same text in all processes that share process numbers */
    const char *name; /* of the host, for people */
    int64_t number;   /* getpid() */
} mpixla_process;
/* Sets both in seconds; without a limit (0) `warn_after` is the time until a report. `processes` are those of
 * MPI_COMM_WORLD, in their order, and `comm` is a duplicate of it that is used for nothing else; 0 where MPI does not
 * have MPI_THREAD_MULTIPLE: then each process reports itself alone. Call it once, on all ranks alike. From then on
 * MPI_Finalize waits until all processes have called it. */
MPIXLA_API int mpixla_timeout_set(double limit, double warn_after, mpixla_handle comm, const mpixla_process *processes,
                                  int64_t count);
/* Gives the stacks of the front end's threads as text, in the callback MPIXLA_WISH_STACKS. `threads` is how many of
 * them may still call XLA or MPI: all but this one and those that wait for the result of a program. Without that
 * callback a rank that waits for itself alone is not found. */
MPIXLA_API void mpixla_timeout_stack_give(const char *text, int64_t threads);
/* Reports that the program of this process has ended: reports of all ranks say so from now on. */
MPIXLA_API void mpixla_timeout_ended(void);
/* Reports that this process makes no call any more, as MPI_Finalize does. */
MPIXLA_API void mpixla_timeout_left(void);
/* Returns when the thread of the time limit has left MPI for good, or after 2 seconds, as it may hang in MPI. Call it
 * right before MPI_Finalize, since MPICH 5.0 may abort if another thread is in MPI when MPI_Finalize begins. Other
 * ranks are answered again within MPI_Finalize. */
MPIXLA_API void mpixla_timeout_stop(void);

/* Sets the count of elements above which MPI's large-count functions are used: by default INT_MAX, which tests lower.
 * Returns the limit before; a limit that is not positive, or greater than INT_MAX, changes nothing. */
MPIXLA_API int64_t mpixla_count_limit_set(int64_t limit);

#ifdef __cplusplus
}
#endif
#endif
