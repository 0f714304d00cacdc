#include "base/shared.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

enum {
    NAME_BYTES = 31, /* as much as macOS takes */
    LEFT = 4         /* one part in so many of the file system is left to others */
};

static void shared_name_make(uint64_t number, char name[NAME_BYTES]) {
    snprintf(name, NAME_BYTES, "/mpixla-%016" PRIx64, number);
}

uint64_t shared_random_number(void) {
    const char here = 0;
    int64_t mine[] = {clock_now(), (int64_t)(intptr_t)&here, getpid(), 0};
    const int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        if (read(file, &mine[3], sizeof mine[3]) < 0) mine[3] = 0;
        (void)close(file);
    }
    return hash_bytes(mine, sizeof mine);
}

/* Allocates the pages of a part of the file now; returns whether they are there and enough others are left. Without
 * that, a process which writes to a page that cannot be had is killed. macOS swaps instead. */
static int shared_pages_reserve(int file, int64_t from, int64_t bytes) {
#ifdef __APPLE__
    (void)file;
    (void)from;
    (void)bytes;
    return 1;
#else
    struct statvfs all;
    return posix_fallocate(file, from, bytes) == 0 && fstatvfs(file, &all) == 0 && all.f_bavail >= all.f_blocks / LEFT;
#endif
}

void *shared_open(uint64_t number, int makes, int64_t bytes, int64_t from, int64_t mine) {
    char name[NAME_BYTES];
    struct stat found = {0};
    shared_name_make(number, name);
    int file = shm_open(name, makes ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, S_IRUSR | S_IWUSR);
    if (file < 0) return NULL;
    int fits = (makes ? ftruncate(file, bytes) == 0
                      : fstat(file, &found) == 0 && found.st_size >= bytes && found.st_uid == geteuid()) &&
               shared_pages_reserve(file, from, mine);
    void *memory = fits ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0) : MAP_FAILED;
    (void)close(file);
    if (memory != MAP_FAILED) return memory;
    if (makes) (void)shm_unlink(name);
    return NULL;
}

void shared_close(void *memory, int64_t bytes) {
    (void)munmap(memory, (size_t)bytes);
}

void shared_unlink(uint64_t number) {
    char name[NAME_BYTES];
    shared_name_make(number, name);
    (void)shm_unlink(name);
}
