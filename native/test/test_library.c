/* What libmpixla.so is to the system, read from its file: the argument. */
#include "check.h"

#ifdef __linux__
#include <elf.h>
#include <link.h>
#include <stdlib.h>

/* It has threads, keys of pthreads and handlers of exit, whose functions must be there as long as the process. */
static void stays_in_the_process(const char *file, const ElfW(Ehdr) * head) {
    const ElfW(Phdr) *parts = (const void *)(file + head->e_phoff);
    ElfW(Xword) flags = 0;
    for (int i = 0; i < head->e_phnum; i++) {
        if (parts[i].p_type != PT_DYNAMIC) continue;
        const ElfW(Dyn) *row = (const void *)(file + parts[i].p_offset);
        for (; row->d_tag != DT_NULL; row++)
            if (row->d_tag == DT_FLAGS_1) flags = row->d_un.d_val;
    }
    CHECK((flags & DF_1_NODELETE) != 0);
}

/* Each thread of the process pays for it, whether it calls MPI or not. */
static void has_little_memory_for_each_thread(const char *file, const ElfW(Ehdr) * head) {
    enum { MOST = 4096 };
    const ElfW(Phdr) *parts = (const void *)(file + head->e_phoff);
    for (int i = 0; i < head->e_phnum; i++)
        if (parts[i].p_type == PT_TLS) CHECK(parts[i].p_memsz <= MOST);
}

int main(int argc, char **argv) {
    enum { MOST = 64 << 20 };
    FILE *f = argc > 1 ? fopen(argv[1], "rb") : NULL;
    char *file = f ? malloc(MOST) : NULL;
    if (!file) return 2;
    CHECK(fread(file, 1, MOST, f) > sizeof(ElfW(Ehdr)));
    fclose(f);
    stays_in_the_process(file, (const void *)file);
    has_little_memory_for_each_thread(file, (const void *)file);
    free(file);
    return check_failures();
}
#else
int main(void) {
    return check_failures();
}
#endif
