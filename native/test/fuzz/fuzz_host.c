/* The fuzzer of the handlers for the host's memory.
 *
 *   fuzz_host FAKE_MPI [options of fuzz_main.h]
 */
#include "test/fixture.h"
#include "test/fuzz/fuzz_main.h"
#include "test/fuzz/fuzz_run.h"

int main(int argc, char **argv) {
    fixture_start(argc, argv);
    fuzz_start(NULL);
    return fuzz_main(argc - 2, argv + 2);
}
