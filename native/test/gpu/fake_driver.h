/* The functions of CUDA's driver, as its library has them. */
#ifndef MPIXLA_TEST_FAKE_DRIVER_H
#define MPIXLA_TEST_FAKE_DRIVER_H

#include "test/gpu/gpu_types.h"

#define MPIXLA_DRIVER(name, cuda, hip, prototype) FAKE_API int cuda prototype;
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) FAKE_API int cuda prototype;
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA

/* As if somebody had called cuInit. */
void fake_driver_ready(void);

#endif
