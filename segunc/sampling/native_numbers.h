// Numbers of feature maps as floats: float32 and bfloat16, the upper half of the bits of a float32.

#pragma once

#include <cstdint>
#include <cstring>

inline float from_bits(int32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

inline int32_t to_bits(float value) {
    int32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float widen(float value) { return value; }

inline float widen(uint16_t value) { return from_bits(static_cast<int32_t>(value) << 16); }
