/* Tests the choice of a route for each kind of call. */
#include "base/feature.h"
#include "call.h"
#include "check.h"
#include "fixture.h"
#include "routes/gpu.h"
#include "routes/nccl_calls.h"
#include "routes/routes.h"

static gpu_call on_gpu;

/* With the host's memory, or a GPU's; `change` changes an attribute of the call, unless it is NULL. */
static const route *choose(const char *op, frame_gpu *gpu, int (*through_nccl)(frame *f), const char *change,
                           int64_t value) {
    static call c;
    static frame f;
    const operation o = {.row = *call_shape(op), .through_nccl = through_nccl};
    call_make(&c, op, FIXTURE_RANK0, 0);
    if (change) call_attribute_set(&c, change, value);
    CHECK_INT(frame_read(&f, &o.row, &c.frame, gpu), 0);
    CHECK_INT(routes_find(&f, &o, features_get()), 0);
    return f.route;
}

static void the_hosts_memory(void) {
    CHECK(choose("allreduce", NULL, NULL, NULL, 0) == &route_host_mpi); /* nothing may be shared yet */
    mpixla_local_start();
    CHECK(choose("allreduce", NULL, NULL, NULL, 0) == &route_host_shared);
    CHECK(choose("barrier", NULL, NULL, NULL, 0) == &route_host_shared);
    CHECK(choose("allgatherv", NULL, NULL, NULL, 0) == &route_host_mpi);
    CHECK(choose("send", NULL, NULL, NULL, 0) == &route_host_mpi);
    CHECK(choose("iallreduce", NULL, NULL, NULL, 0) == &route_host_mpi);
    CHECK(choose("halo_exchange", NULL, NULL, NULL, 0) == &route_host_mpi);
}

/* The ranks have agreed already, so nobody asks the driver. */
static void a_gpus_memory(void) {
    static plan agreed = {.nccl = NULL};
    comm_entry *entry = comm_find(FIXTURE_RANK0);
    comm_attach(entry, COMM_SLOT_PLAN, &agreed);
    CHECK(choose("allreduce", &on_gpu.of_frame, nccl_allreduce, NULL, 0) == &route_gpu_host);
    CHECK(on_gpu.plan == &agreed);
    agreed.nccl = &(nccl){.number = 1};
    CHECK(choose("allreduce", &on_gpu.of_frame, nccl_allreduce, NULL, 0) == &route_nccl);
    CHECK(choose("scan", &on_gpu.of_frame, NULL, NULL, 0) == &route_gpu_host);                /* NCCL has none */
    CHECK(choose("allreduce", &on_gpu.of_frame, nccl_allreduce, "op", 2) == &route_gpu_host); /* nor this MAX */
    agreed.nccl = NULL;

    CHECK_INT(mpixla_gpu_transport_set("mpi"), 0);
    on_gpu.plan = NULL;
    CHECK(choose("send", &on_gpu.of_frame, NULL, NULL, 0) == &route_gpu_mpi);
    CHECK(on_gpu.plan == NULL); /* of a message nobody else knows */
    CHECK(choose("allreduce", &on_gpu.of_frame, nccl_allreduce, NULL, 0) == &route_gpu_mpi);
    CHECK(choose("send", &on_gpu.of_frame, NULL, "dest", 0) == &route_gpu_host);     /* to itself, which is copied */
    CHECK(choose("isend", &on_gpu.of_frame, NULL, NULL, 0) == &route_gpu_host);      /* likewise */
    CHECK(choose("iallreduce", &on_gpu.of_frame, NULL, NULL, 0) == &route_gpu_host); /* likewise */
    CHECK_INT(mpixla_gpu_transport_set("auto"), 0);
    comm_attach(entry, COMM_SLOT_PLAN, NULL);
}

/* Names are those that timelines have. */
static void names(void) {
    CHECK(!route_host_shared.name && !route_host_mpi.name);
    CHECK_STR(route_nccl.name, "nccl");
    CHECK_STR(route_gpu_mpi.name, "mpi");
    CHECK_STR(route_gpu_host.name, "host");
}

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    the_hosts_memory();
    a_gpus_memory();
    names();
    return check_failures();
}
