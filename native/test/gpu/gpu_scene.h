/* Calls on arrays in the host's memory or a fake GPU's, and an MPI that answers them by a rule: what the handlers for a
 * GPU give can so be compared with what those for the host give. Nobody runs the GPU's stream but the library, unless
 * the test says so: what one call leaves on it is still there in the next.
 *
 *   a test program of this is called with FAKE_MPI FAKE_GPU TRANSPORT [rocm|sycl]
 */
#ifndef MPIXLA_TEST_GPU_SCENE_H
#define MPIXLA_TEST_GPU_SCENE_H

#include "test/call.h"
#include "test/fixture.h"
#include "test/gpu/fake_stream.h"

/* The stream of every call. */
extern fake_stream *gpu_stream;

/* A real GPU, or a processor that stands for one: the stream of every call, and memory that the test can read and write
 * as well, which nobody watches. `wait` waits for the stream, and returns 0. */
typedef struct gpu_real {
    driver_stream stream;
    void *(*alloc)(size_t bytes);
    void (*release)(void *memory);
    int (*wait)(void);
} gpu_real;
extern const gpu_real *gpu_in_place; /* of the fake GPU; NULL: none */

/* Connects the library to all of them; pieces have GPU_PIECE bytes. */
enum { GPU_PIECE = 64 };
void gpu_start(int argc, char **argv);

/* Runs what the stream has to do. Returns the driver's code. */
int gpu_drain(void);

/* What the stream has, and the context of the thread, become as they were at first, whatever has failed. */
void gpu_recover(void);

/* MPI sends nothing: what it is told to send is added up in `sent`, in order, and what it receives are consecutive
 * numbers, other ones for each
 * seed. A reduction gives three times what this rank has, and one. */
void gpu_mpi_reset(int seed);
uint64_t gpu_mpi_sent(void);

/* If not NULL, runs before each answer. */
extern void (*gpu_mpi_watch)(void);

/* When ranks agree, each of gpu_mpi_ranks says what this one does. If this is not NULL it runs then, with the number of
 * bytes that each has said, and may change what this rank hears. */
extern void (*gpu_mpi_agree)(int64_t bytes);
extern int gpu_mpi_ranks;

/* The calls of the driver and of NCCL since fake_calls_forget, which are at most so many: the function, and which of
 * its calls it is, from 1. */
typedef struct gpu_noted {
    const char *function;
    int64_t nth;
} gpu_noted;
int64_t gpu_calls_list(gpu_noted *calls, int64_t most);

/* Every scene has these. */
enum {
    SCENE_SENT,
    SCENE_REDUCED,
    SCENE_TEMPLATE,
    SCENE_RECEIVED,
    SCENE_SHORT,
    SCENE_AGAIN,
    SCENE_STATUS,
    SCENE_WITH_STATUS,
    SCENE_WITH_NUMBERS,
    SCENE_NUMBERS,
    SCENE_ID,
    SCENE_OTHER_ID,
    SCENE_WAITED,
    SCENE_BLOCK,
    SCENE_OTHER_BLOCK,
    SCENE_LARGE,
    SCENE_LARGE_REDUCED,
    SCENE_LARGE_SPREAD,
    SCENE_LARGE_SCANNED,
    SCENE_WIDE,
    SCENE_NARROW,
    SCENE_PACKED,
    SCENE_UNPACKED,
    SCENE_OTHER_UNPACKED,
    SCENE_EXCHANGED,
    SCENE_RANK,
    SCENE_ARRAYS
};

/* int32 items, but for the status, of bytes, and ids, of float32. */
enum { SCENE_ITEMS = 12, SCENE_LARGE_ITEMS = 100, SCENE_ROWS = 6, SCENE_COLUMNS = 5, SCENE_LINES = 3 };

typedef struct scene {
    int on_device;
    void *arrays[SCENE_ARRAYS];
    void *contents[SCENE_ARRAYS]; /* at first, where the stream brings it from */
    call c;
} scene;

/* Arrays with contents, other ones for each seed, which on a GPU arrive late. */
void scene_open(scene *s, int on_device, int seed);
void scene_close(scene *s);

/* The name of the first array in which the two differ, or NULL. The stream must have run. */
const char *scenes_differ(const scene *on_host, const scene *on_device);

/* Things that a program does, each with calls of its own, in an order in which they use what those before gave. */
typedef struct scene_step {
    const char *name;
    int is_collective;            /* all ranks make it, and wait for one that does not */
    const char *(*run)(scene *s); /* NULL: it is one call, of all items of arrays */
    const char *op;
    int is_rank2;            /* on that communicator, else FIXTURE_RANK0 */
    int operands[2], result; /* the arrays; those that this rank does not pass are not looked at */
    int64_t missing;         /* of its message */
} scene_step;
extern const scene_step scene_steps[];
extern const int scene_step_count;
const scene_step *scene_step_find(const char *name);
/* The sentence of the first call that failed, or "". */
const char *scene_run(scene *s, const scene_step *step);

/* A call as call_make's with the handler for the scene's memory, and a buffer of it. */
void scene_call(scene *s, const char *op, int64_t comm, int64_t root);
/* The same of a helper, which has no buffers yet. */
void scene_help(scene *s, const char *name);
void scene_buffer(scene *s, int side, int position, int dtype, int64_t count, int array);

#endif
