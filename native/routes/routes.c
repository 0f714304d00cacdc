#include "routes/routes.h"

#include "base/feature.h"
#include "local/local.h"
#include "ops/itself.h"
#include "routes/gpu.h"

/* The first that can make a call makes it. */
static const route *const routes[] = {&route_host_shared, &route_host_mpi, &route_nccl, &route_gpu_mpi,
                                      &route_gpu_host};

int routes_choose(frame *f, const operation *o, unsigned on, const route **chosen) {
    const int code = f->gpu || (on & FEATURE_GPUS) ? gpu_join(f) : 0;
    if (code != 0) return code;
    const route *const *r = routes;
    while ((*r)->can && !(*r)->can(f, o)) r++; /* the last one makes every call */
    *chosen = *r;
    if (f->gpu) f->gpu->route = *r;
    return 0;
}

int routes_check(const frame *f) {
    return !f->gpu && facts_are_collective(&f->facts) ? local_check(f) : 0;
}

int routes_mpi_prepare(frame *f) {
    int code = f->facts.reverse ? comm_derive(f->facts.communicator, COMM_REVERSED, &f->comm) : 0;
    if (code == 0 && f->facts.row->request == MPIXLA_COMPLETES) code = itself_await(f);
    return code;
}
