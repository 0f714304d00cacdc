/* The ranks of a communicator agree once, in the first call that all of them make with a GPU's memory on some rank.
 * Each sends its statement to all others, and all draw the same conclusion, so ranks never choose differently, whatever
 * their environments say.
 *
 * A rank that calls with the host's memory takes part as well, since it cannot know whether others call with a GPU's.
 * As long as no rank does, that costs a message in each call. So it is done only in jobs in which some rank may have a
 * GPU, which all ranks have found out together at the start, and only until all have said that they will never use one.
 */
#include "routes/plan.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/feature.h"
#include "mpi/agreed.h"
#include "mpi/job.h"

static const char *const wishes[PLAN_WISHES] = {
    [PLAN_AUTO] = "auto", [PLAN_HOST] = "host", [PLAN_NCCL] = "nccl", [PLAN_MPI] = "mpi"};

static atomic_int wish = PLAN_AUTO;
static char mpi_refusal[256];                      /* as plan_mpi_refusal gives it */
static atomic_int gpus_here = 1;                   /* whether this process may have a GPU */
static atomic_int_least64_t piece_bytes = 1 << 20; /* mpixla_gpu_piece_set */

static plan *plans;                                         /* of communicators that are alive, the newest first */
static pthread_mutex_t listing = PTHREAD_MUTEX_INITIALIZER; /* for the list */

/* Sets the transport that the user asks for: auto, nccl, mpi or host. Returns 0, or REFUSED for another name. */
int mpixla_gpu_transport_set(const char *name) {
    for (int i = 0; i < PLAN_WISHES; i++)
        if (strcmp(wishes[i], name) == 0) {
            atomic_store(&wish, i);
            return 0;
        }
    return error_set("MPIXLA_GPU_TRANSPORT is '%s', but must be auto, nccl, mpi or host", name);
}

void mpixla_gpu_mpi_refuse(const char *why) {
    snprintf(mpi_refusal, sizeof mpi_refusal, "%s", why);
}

const char *plan_mpi_refusal(void) {
    return mpi_refusal;
}

/* Writes the transport that a communicator uses for a GPU's memory, with the reason, as text. */
void mpixla_gpu_transport_describe(int64_t comm, char *text, size_t bytes) {
    const comm_entry *entry = comm_find(comm);
    const plan *p = entry ? comm_attached(entry, COMM_SLOT_PLAN) : NULL;
    int number = p && p->nccl ? p->nccl->number : 0;
    if (!p)
        snprintf(text, bytes, "not chosen yet");
    else if (p->nccl)
        snprintf(text, bytes, "nccl: NCCL %d.%d.%d (%s), a GPU for each rank", number / 10000, number / 100 % 100,
                 number % 100, p->nccl->file);
    else
        snprintf(text, bytes, "%s: %s", p->is_refused ? "none" : plan_wish_get() == PLAN_MPI ? "mpi" : "host", p->why);
}

void mpixla_gpus_expect(int in_job, int here) {
    (void)feature_set(FEATURE_GPUS, in_job);
    atomic_store(&gpus_here, here);
}

int64_t mpixla_gpu_piece_set(int64_t bytes) {
    int64_t before = atomic_load(&piece_bytes);
    if (bytes > 0) atomic_store(&piece_bytes, bytes);
    return before;
}

plan_wish plan_wish_get(void) {
    return (plan_wish)atomic_load(&wish);
}

/* A statement is a rank's description of itself, which it sends to all others. */
enum { NEVER_ON_GPU, NOT_NOW, ON_GPU };
typedef struct statement {
    int32_t where; /* whether this call has a GPU's memory here, or a later one may */
    int32_t wish;
    int32_t nccl; /* NCCL's version; 0: it cannot be used, as `why` says */
    int32_t platform;
    int64_t shares; /* whether NCCL is told that ranks may use the same GPU */
    int64_t piece;  /* mpixla_gpu_piece_set */
    driver_uuid gpu;
    char why[256];
} statement;

/* Returns this rank's statement: whether it has a GPU (`d`, NULL for none), its wish, and NCCL's version or the reason
 * why it cannot be used. */
static statement plan_statement_make(const device *d) {
    const char *shares = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    statement r = {.where = d                         ? ON_GPU
                            : atomic_load(&gpus_here) ? NOT_NOW
                                                      : NEVER_ON_GPU,
                   .wish = (int32_t)plan_wish_get(),
                   .shares = shares && strcmp(shares, "1") == 0,
                   .piece = atomic_load(&piece_bytes)};
    if (!d) return r;
    r.platform = (int32_t)d->driver->platform;
    const nccl *n = r.wish == PLAN_HOST ? NULL : nccl_get(d->driver->platform);
    if (n && DRIVER_CALL(d->driver, device_uuid, &r.gpu, d->number) == 0)
        r.nccl = n->number;
    else
        snprintf(r.why, sizeof r.why, "%s", error_get());
    return r;
}

/* Returns whether two ranks have the same GPU, and sets `*first` and `*second` to these ranks. */
static int plan_gpu_is_shared(const statement *all, int size, int *first, int *second) {
    for (int i = 0; i < size; i++)
        for (int j = i + 1; j < size; j++)
            if (memcmp(&all[i].gpu, &all[j].gpu, sizeof all[i].gpu) == 0) {
                *first = i;
                *second = j;
                return 1;
            }
    return 0;
}

/* Returns whether NCCL cannot be used, and writes the reason to `why`. Both follow from the statements of all ranks, so
 * they are the same on all ranks. */
static int plan_nccl_refusal(const statement *all, int size, char *why, size_t bytes) {
    int first = 0, second = 0, may_share = all[0].nccl >= NCCL_SHARED_GPUS;
    for (int i = 0; i < size; i++) {
        if (all[i].where != ON_GPU)
            return snprintf(why, bytes, "rank %d calls with the host's memory and others with a GPU's", i);
        if (all[i].nccl == 0) return snprintf(why, bytes, "on rank %d %s", i, all[i].why);
        if (all[i].platform != all[0].platform)
            return snprintf(why, bytes, "ranks 0 and %d have GPUs of different platforms", i);
        if (all[i].nccl != all[0].nccl)
            return snprintf(why, bytes, "ranks 0 and %d have different versions of NCCL, %d and %d", i, all[0].nccl,
                            all[i].nccl);
        may_share = may_share && all[i].shares;
    }
    if (!may_share && plan_gpu_is_shared(all, size, &first, &second))
        return snprintf(
            why, bytes,
            "ranks %d and %d use the same GPU (NCCL from 2.30 on allows it with "
            "NCCL_MULTI_RANK_GPU_ENABLE=1 on every rank; mpixla.select_local_gpu() gives each rank its own)",
            first, second);
    return 0;
}

/* Ends the job by job_fail, as there is no memory for the statements that the other ranks wait for. Returns REFUSED on
 * a communicator of one rank. */
static int plan_memory_refuse(const frame *f) {
    (void)error_set("out of memory for the plan of a communicator's GPUs");
    (void)job_fail(f->facts.communicator);
    return REFUSED; /* whatever job_fail does, which an analyzer sees */
}

/* Sets `*rank`, on all ranks, to the first rank on which a step has failed; -1 if it has on none. Collective. Returns 0
 * or an error code. */
static int plan_first_failure_find(const frame *f, mpixla_handle comm, int failed, int *rank) {
    agreed first;
    const int code = agreed_find(comm, (uint64_t)(failed ? f->facts.communicator->rank : f->size), &first);
    *rank = first.least == (uint64_t)f->size ? -1 : (int)first.least;
    return code;
}

/* Makes NCCL's communicator of the same ranks, and sets p->nccl. If one rank cannot, all ranks go on without it, and
 * p->why has the reason. Collective. Returns 0 or an error code. */
static int plan_nccl_join(const frame *f, const device *d, mpixla_handle comm, plan *p) {
    const mpi_library *mpi = mpi_get();
    const nccl *n = nccl_get(d->driver->platform);
    nccl_id id = {{0}};
    int failed = 0, failing = 0, rank = f->facts.communicator->rank;
    char why[PLAN_WHY_BYTES - 64] = ""; /* behind some words */
    if (!n || (rank == 0 && NCCL_CALL(n, NULL, unique_id, &id))) failed = 1;
    if (failed) snprintf(why, sizeof why, "%s", error_get());
    int code = plan_first_failure_find(f, comm, failed, &failing);
    if (code == 0 && failing < 0)
        code = mpi->small->bcast(&id, (int64_t)sizeof id, dtype_find(FFI_U8)->handle, 0, comm);
    if (code != 0) return code;
    if (failing < 0) {
        failed = nccl_comm_make(n, &p->nccl_comm, f->size, id, rank);
        if (failed) snprintf(why, sizeof why, "%s", error_get());
        code = plan_first_failure_find(f, comm, failed, &failing); /* which is also the barrier that NCCL wants here */
    }
    if (code == 0 && failing < 0) {
        p->nccl = n;
        p->device = d->number;
        return 0;
    }
    if (p->nccl_comm) (void)n->comm_abort(p->nccl_comm);
    p->nccl_comm = NULL;
    if (code != 0) return code;
    snprintf(p->why, sizeof p->why, "NCCL does not start on rank %d%s%s", failing, *why ? ": " : "", why);
    return 0;
}

/* Fills the plan from the statements of all ranks, of which `on_gpus` are on GPUs; the result is the same on all ranks.
 * Collective. Returns 0 or an error code. */
static int plan_decide(const frame *f, const device *d, mpixla_handle comm, const statement *all, int on_gpus,
                       plan *p) {
    p->piece_bytes = all[0].piece;
    for (int i = 0; i < f->size; i++) {
        if (all[i].wish != all[0].wish) {
            p->is_refused = 1;
            snprintf(p->why, sizeof p->why, "MPIXLA_GPU_TRANSPORT is %s on rank 0, and %s on rank %d",
                     wishes[all[0].wish], wishes[all[i].wish], i);
            return 0;
        }
        if (all[i].where != ON_GPU || all[i].piece != all[0].piece) p->piece_bytes = 0;
    }
    if (on_gpus == 0) {
        snprintf(p->why, sizeof p->why, "no rank has a GPU");
        return 0;
    }
    if (all[0].wish == PLAN_HOST || all[0].wish == PLAN_MPI) {
        snprintf(p->why, sizeof p->why, "MPIXLA_GPU_TRANSPORT is %s", wishes[all[0].wish]);
        return 0;
    }
    int code = plan_nccl_refusal(all, f->size, p->why, sizeof p->why) ? 0 : plan_nccl_join(f, d, comm, p);
    p->is_refused = !p->nccl && all[0].wish == PLAN_NCCL;
    return code;
}

/* Makes the plan of a communicator, how its calls with a GPU's memory travel, together with the other ranks. `*made`
 * stays NULL while all ranks call with the host's memory and some may yet have a GPU's. Collective. Returns 0 or an
 * error code; without memory it ends the job, or returns REFUSED on one rank (job_fail). */
static int plan_make(const frame *f, const device *d, plan **made) {
    const mpi_library *mpi = mpi_get();
    mpixla_handle comm = 0, byte = dtype_find(FFI_U8)->handle;
    int code = comm_derive(f->facts.communicator, COMM_PRIVATE, &comm), on_gpus = 0, never = 0;
    const statement mine = plan_statement_make(d);
    statement *all = calloc((size_t)f->size, sizeof *all);
    plan *p = calloc(1, sizeof *p);
    if (code == 0 && (!all || !p)) code = plan_memory_refuse(f);
    if (code == 0)
        code = mpi->small->allgather(&mine, (int64_t)sizeof mine, byte, all, (int64_t)sizeof mine, byte, comm);
    for (int i = 0; i < f->size && code == 0; i++) {
        on_gpus += all[i].where == ON_GPU;
        never += all[i].where == NEVER_ON_GPU;
    }
    if (code == 0 && (on_gpus > 0 || never == f->size)) {
        code = plan_decide(f, d, comm, all, on_gpus, p);
        if (code == 0) *made = p;
    }
    if (*made != p) free(p);
    free(all);
    return code;
}

int plan_nccl_check(const plan *p) {
    int earlier = 0;
    if (NCCL_CALL(p->nccl, p->nccl_comm, comm_error, p->nccl_comm, &earlier)) return REFUSED;
    return nccl_check_earlier(p->nccl, p->nccl_comm, earlier);
}

/* Frees NCCL's communicator. ncclCommDestroy waits for all work that the communicator was given, so one that has failed
 * is aborted. Returns as plan_nccl_check. */
static int plan_nccl_leave(plan *p) {
    const nccl *n = p->nccl;
    const int code = n ? plan_nccl_check(p) : 0;
    p->nccl = NULL;
    if (n) (void)(code != 0 || atomic_load(&p->has_failed) ? n->comm_abort : n->comm_destroy)(p->nccl_comm);
    return code;
}

/* Removes a plan from the list, and frees it with its NCCL communicator (the destructor of COMM_SLOT_PLAN). Takes the
 * lock. */
static void plan_free(void *which) {
    plan *p = which;
    pthread_mutex_lock(&listing);
    plan **at = &plans;
    while (*at && *at != p) at = &(*at)->next;
    if (*at) *at = p->next;
    pthread_mutex_unlock(&listing);
    (void)plan_nccl_leave(p);
    free(p);
}

/* Frees NCCL's communicators of all plans, after their work is done, since their threads would else be at work while
 * the process ends. Returns 0, or REFUSED with the last failure. */
int mpixla_gpus_end(void) {
    int code = 0;
    pthread_mutex_lock(&listing);
    for (plan *p = plans; p; p = p->next)
        if (plan_nccl_leave(p)) code = REFUSED;
    pthread_mutex_unlock(&listing);
    return code;
}

int plan_nccl_poll(void) {
    int code = 0;
    if (pthread_mutex_trylock(&listing) != 0) return 0; /* mpixla_gpus_end may wait for NCCL */
    for (const plan *p = plans; p && code == 0; p = p->next)
        if (p->nccl && !atomic_load(&p->has_failed)) code = plan_nccl_check(p);
    pthread_mutex_unlock(&listing);
    return code;
}

/* Adds a plan to the list, and attaches it to its communicator, which owns it from then on. Takes the lock. */
static void plan_register(comm_entry *entry, plan *p) {
    pthread_mutex_lock(&listing);
    p->next = plans;
    plans = p;
    pthread_mutex_unlock(&listing);
    comm_attach(entry, COMM_SLOT_PLAN, p);
}

void plan_start(void) {
    comm_slot_destructor_set(COMM_SLOT_PLAN, plan_free);
}

int plan_find(const frame *f, const device *d, plan **found) {
    comm_entry *entry = f->facts.communicator;
    plan *p = comm_attached(entry, COMM_SLOT_PLAN);
    if (!p) {
        int code = plan_make(f, d, &p);
        if (code != 0) return code;
        if (p) plan_register(entry, p);
    }
    *found = p;
    return 0;
}
