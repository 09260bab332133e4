// A drawn affine on a CPU in one pass over memory: scale and shift of each channel, and where asked for the addition of
// another feature map and a clamp (ReLU, ReLU6). Feature maps are channels last: the channels of a pixel lie side by side.
//
// bfloat16 is rounded where separate functions of torch round, so that the bits are theirs.
//
// Nothing here is written for one instruction set: the inner loop runs along channels and is left to the compiler's
// vectoriser.

#include <algorithm>
#include <cstdint>

#include "native_numbers.h"
#include "native_pieces.h"

namespace {

inline void narrow(float value, float& target) { target = value; }

// To the nearest bfloat16, and to the even one of two that are as near. The sum of a NaN's bits would overflow.
inline void narrow(float value, uint16_t& target) {
    const uint32_t bits = static_cast<uint32_t>(to_bits(value));
    const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    target = value != value ? static_cast<uint16_t>(0x7FC0) : static_cast<uint16_t>(rounded);
}

template <typename T>
inline float stored(float value) {
    T target;
    narrow(value, target);
    return widen(target);
}

// Some pixels of one image. NaN stays NaN in a clamp.
template <typename T, bool ADDS, bool CLAMPS>
void pixels_of(const T* __restrict maps, const T* __restrict scale, const T* __restrict shift,
               const T* __restrict addend, T* __restrict out, int64_t channels, int64_t pixels, float low, float high) {
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
        const T* __restrict from = maps + pixel * channels;
        const T* __restrict other = ADDS ? addend + pixel * channels : nullptr;
        T* __restrict target = out + pixel * channels;
        for (int64_t c = 0; c < channels; ++c) {
            float value = widen(from[c]) * widen(scale[c]) + widen(shift[c]);
            if (ADDS) value = stored<T>(value) + widen(other[c]);
            if (CLAMPS) {
                value = value < low ? low : value;
                value = value > high ? high : value;
            }
            narrow(value, target[c]);
        }
    }
}

template <typename T>
struct Maps {
    const T* maps;
    const T* scale;
    const T* shift;
    const T* addend;  // or null
    T* out;
    int64_t channels, pixels;  // of an image
    int64_t stride;            // from one image's scale and shift to the next one's; 0 where all have the same
    float low, high;

    template <bool ADDS, bool CLAMPS>
    void run(int64_t first, int64_t last) const {
        while (first < last) {
            const int64_t image = first / pixels;
            const int64_t end = std::min(last, (image + 1) * pixels);
            const int64_t at = first * channels;
            pixels_of<T, ADDS, CLAMPS>(maps + at, scale + image * stride, shift + image * stride,
                                       ADDS ? addend + at : nullptr, out + at, channels, end - first, low, high);
            first = end;
        }
    }
};

template <typename T>
void affine(const void* maps, const void* scale, const void* shift, const void* addend, void* out, int64_t channels,
            int64_t pixels, int64_t stride, int32_t clamps, float low, float high, int64_t first, int64_t last) {
    const Maps<T> all{static_cast<const T*>(maps),
                      static_cast<const T*>(scale),
                      static_cast<const T*>(shift),
                      static_cast<const T*>(addend),
                      static_cast<T*>(out),
                      channels,
                      pixels,
                      stride,
                      low,
                      high};
    if (addend != nullptr && clamps != 0)
        all.template run<true, true>(first, last);
    else if (addend != nullptr)
        all.template run<true, false>(first, last);
    else if (clamps != 0)
        all.template run<false, true>(first, last);
    else
        all.template run<false, false>(first, last);
}

}  // namespace

// Pixels first..last-1, counted over all images of a batch, in pieces.
extern "C" void segunc_affine(const void* maps, const void* scale, const void* shift, const void* addend, void* out,
                              int32_t bfloat16, int64_t channels, int64_t pixels, int64_t stride, int32_t clamps,
                              float low, float high, int64_t first, int64_t last, int64_t pieces, int32_t threads) {
    const auto run = bfloat16 != 0 ? affine<uint16_t> : affine<float>;
    in_pieces(first, last, pieces, threads, [&](int64_t from, int64_t to) {
        run(maps, scale, shift, addend, out, channels, pixels, stride, clamps, low, high, from, to);
    });
}
