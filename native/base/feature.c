#include "base/feature.h"

atomic_uint features_on;

int feature_set(unsigned feature, int on) {
    const unsigned before = on ? atomic_fetch_or(&features_on, feature) : atomic_fetch_and(&features_on, ~feature);
    return (before & feature) != 0;
}
