#include "mpi/loss.h"

#include "mpixla.h"

/* 0: this MPI has no such class. */
static atomic_int failed, pending, revoked;

/* Sets the error classes by which this MPI reports a dead process, a pending receive, and a revoked communicator; 0:
 * none. */
void mpixla_loss_classes_set(int failed_class, int pending_class, int revoked_class) {
    atomic_store(&failed, failed_class);
    atomic_store(&pending, pending_class);
    atomic_store(&revoked, revoked_class);
}

int loss_error_class(void) {
    return atomic_load(&failed);
}

int loss_is_pending(int error_class) {
    return error_class > 0 && error_class == atomic_load(&pending);
}

int loss_is_error(int error_class) {
    return error_class > 0 && (error_class == atomic_load(&failed) || error_class == atomic_load(&revoked) ||
                               loss_is_pending(error_class));
}

void loss_derived_revoke(comm_entry *entry) {
    const mpi_library *mpi = mpi_get();
    if (!mpi->comm_revoke) return;
    for (int i = 0; i < COMM_DERIVED; i++)
        if (atomic_load(&entry->derived[i].made)) (void)mpi->comm_revoke(entry->derived[i].handle);
}
