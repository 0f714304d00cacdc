/* The functions of CUDA's driver and of HIP, as their libraries have them. */
#ifndef MPIXLA_TEST_FAKE_DRIVER_H
#define MPIXLA_TEST_FAKE_DRIVER_H

#include "test/gpu/gpu_types.h"

#define MPIXLA_DRIVER(name, cuda, hip, sycl, prototype) \
    FAKE_API driver_code cuda prototype;                \
    FAKE_API driver_code hip prototype;
#define MPIXLA_DRIVER_CUDA(name, cuda, prototype) FAKE_API driver_code cuda prototype;
#define MPIXLA_DRIVER_HIP(name, hip, prototype) FAKE_API driver_code hip prototype;
#include "tables/driver_functions.def"
#undef MPIXLA_DRIVER
#undef MPIXLA_DRIVER_CUDA
#undef MPIXLA_DRIVER_HIP

/* As if somebody had called cuInit. */
void fake_driver_ready(void);

#endif
