#include "routes/routes.h"

#include "local/local.h"
#include "ops/self_message.h"

const route *const routes_table[] = {&route_host_shared, &route_host_mpi, &route_nccl, &route_gpu_mpi, &route_gpu_host};

int routes_choose(frame *f, const operation *o) {
    const int code = f->gpu || (features_get() & FEATURE_GPUS) ? gpu_plan_agree(f) : 0;
    if (code != 0) return code;
    const route *const *r = routes_table;
    while ((*r)->can_make && !(*r)->can_make(f, o)) r++;
    f->route = *r;
    return 0;
}

int routes_check(const frame *f) {
    return !f->gpu && facts_are_collective(&f->facts) ? local_check(f) : 0;
}

int routes_mpi_prepare(frame *f) {
    int code = f->facts.reverse ? comm_derive(f->facts.communicator, COMM_REVERSED, &f->comm) : 0;
    if (code == 0 && f->facts.row->request == MPIXLA_COMPLETES) code = self_message_await(f);
    return code;
}
