#include "mpi/status.h"

#include <stddef.h>

#include "base/error.h"
#include "base/list.h"
#include "mpixla.h"

static list statuses = {.item_size = sizeof(void *), .items_name = "status objects"};

int64_t mpixla_status_register(void *address) {
    return address ? list_find_or_append(&statuses, &address) : error_set("a status object has no address");
}

void *status_find(int64_t id) {
    void **address = list_find(&statuses, id);
    return address ? *address
                   : error_null(
                         "status object number %lld is not registered in this process; a program that is to be "
                         "exported must not take a status",
                         (long long)id);
}
