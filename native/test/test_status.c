#include "base/error.h"
#include "check.h"
#include "mpi/status.h"
#include "mpixla.h"

int main(void) {
    char first[64], second[64];
    CHECK(status_find(0) == NULL);
    CHECK_STR(error_get(),
              "status object number 0 is not registered in this process; a program that is to be exported must "
              "not take a status");
    CHECK_INT(mpixla_status_register(first), 0);
    CHECK_INT(mpixla_status_register(second), 1);
    CHECK_INT(mpixla_status_register(first), 0);
    CHECK(status_find(0) == first);
    CHECK(status_find(1) == second);
    CHECK(status_find(2) == NULL);
    CHECK(status_find(-1) == NULL);
    CHECK_INT(mpixla_status_register(NULL), -1);
    CHECK_STR(error_get(), "a status object has no address");
    return check_failures();
}
