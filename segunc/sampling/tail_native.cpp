// The tail of the sampler on a CPU: upsample low-resolution logits of several draws, take the softmax, and add each
// draw's probabilities and entropy, and where asked for what its logits are like, to running sums. Full-resolution logits
// exist only for one row of a block of columns.
//
// Logits are read as their halves. Neither an interpolation nor a difference of two halves can leave float32, so that
// every finite logit has its right softmax: networks mask classes by the lowest float.
//
// The inner loops run along columns and are left to the compiler's vectoriser; only a lookup of neighbours is written out
// (Lanes). Draws are added one after the other, so that it does not matter in how many calls they come.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "native_numbers.h"
#include "native_pieces.h"

namespace {

constexpr int64_t BLOCK = 128;  // output columns at a time: 150 classes of them, twice, stay in the second-level cache

// Vectors whose numbers one instruction puts into any order. A gather takes one load for each number.
#if defined(__GNUC__) && !defined(__clang__) && defined(__AVX512F__)
constexpr int64_t LANES = 16;
#elif defined(__GNUC__) && !defined(__clang__) && defined(__AVX2__)
constexpr int64_t LANES = 8;
#else
constexpr int64_t LANES = 0;  // no such instruction is known
#endif

constexpr int64_t NARROW = BLOCK + 2 + LANES;  // low-resolution columns of a block, and what a vector reads behind them

constexpr float LOWEST = -87.3365f;  // ln of the smallest normal float; exp of what lies lower counts as 0

// exp(x) for LOWEST <= x <= 0, relative error below 2e-7. Range reduction by ln 2 in two parts, Taylor polynomial of
// degree 6 on |r| <= ln(2) / 2.
inline float exponential(float x) {
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: the sum's last bits are the rounded integer
    const int32_t power = to_bits(shifted) - 0x4B400000;
    const float whole = shifted - 12582912.0f;
    const float r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
    float p = 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.16666667e-2f;
    p = p * r + 1.66666667e-1f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * from_bits((power + 127) << 23);
}

// ln(x) for normal x > 0 in double precision, absolute error below 1e-13 for x in 1e-38 .. 1e38:
// x = m 2^k with m in [sqrt(1/2), sqrt(2)), ln m = 2 artanh((m - 1) / (m + 1)).
inline double logarithm(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    const int64_t exponent = (bits - 0x3FE6A09E667F3BCDll) >> 52;
    const int64_t mantissa = bits - (exponent << 52);
    double m;
    std::memcpy(&m, &mantissa, sizeof m);
    const double s = (m - 1.0) / (m + 1.0), q = s * s;
    double p = 1.0 / 19.0;
    p = p * q + 1.0 / 17.0;
    p = p * q + 1.0 / 15.0;
    p = p * q + 1.0 / 13.0;
    p = p * q + 1.0 / 11.0;
    p = p * q + 1.0 / 9.0;
    p = p * q + 1.0 / 7.0;
    p = p * q + 1.0 / 5.0;
    p = p * q + 1.0 / 3.0;
    p = p * q + 1.0;
    return static_cast<double>(static_cast<int32_t>(exponent)) * 0.69314718055994531 + 2.0 * s * p;
}

// Half the logits in `count` columns of a row of all classes, as float32 planes: out[c][x], `pitch` apart.
template <typename T>
void read_row(const T* row, const int64_t* strides, int64_t classes, int64_t count, float* out, int64_t pitch) {
    // Class by class: the stores are contiguous, and of channels-last logits a block stays in the first-level cache.
    for (int64_t c = 0; c < classes; ++c) {
        const T* source = row + c * strides[0];
        float* target = out + c * pitch;
        if (strides[1] == 1)
            for (int64_t x = 0; x < count; ++x) target[x] = widen(source[x]) * 0.5f;
        else
            for (int64_t x = 0; x < count; ++x) target[x] = widen(source[x * strides[1]]) * 0.5f;
    }
}

// One column from its two neighbours. A difference times a weight would lose the smaller of two numbers.
template <typename Number>
inline Number between(Number weight, Number left, Number right) {
    return (1.0f - weight) * left + weight * right;
}

// Columns from..to-1 of all classes, upsampled from `narrow`: out[c][x].
void widen_columns(const float* narrow, int64_t classes, const int32_t* left, const int32_t* right, const float* weight,
                   int64_t from, int64_t to, float* out) {
    const int32_t first = left[0];
    for (int64_t c = 0; c < classes; ++c) {
        const float* source = narrow + c * NARROW;
        float* target = out + c * BLOCK;
        for (int64_t x = from; x < to; ++x)
            target[x] = between(weight[x], source[left[x] - first], source[right[x] - first]);
    }
}

// The same for whole vectors of columns, as far as there are any; returns the first column that is left.
int64_t widen_vectors(const float* narrow, int64_t classes, const int32_t* left, const int32_t* right, const float* weight,
                      int64_t width, float* out) {
    int64_t x = 0;
    if constexpr (LANES > 0) {
        typedef float Floats __attribute__((vector_size(LANES * 4)));
        typedef int32_t Integers __attribute__((vector_size(LANES * 4)));
        for (; x + LANES <= width; x += LANES) {
            const int32_t start = left[x];
            if (right[x + LANES - 1] - start >= LANES) return x;  // more neighbours than a vector holds: no upsampling
            Integers lefts, rights;
            Floats weights;
            std::memcpy(&lefts, left + x, sizeof lefts);
            std::memcpy(&rights, right + x, sizeof rights);
            std::memcpy(&weights, weight + x, sizeof weights);
            for (int64_t c = 0; c < classes; ++c) {
                Floats source;
                std::memcpy(&source, narrow + c * NARROW + start - left[0], sizeof source);
                const Floats a = __builtin_shuffle(source, lefts - start), b = __builtin_shuffle(source, rights - start);
                const Floats column = between(weights, a, b);
                std::memcpy(out + c * BLOCK + x, &column, sizeof column);
            }
        }
    }
    return x;
}

// Half the logits in one low-resolution row of all classes, upsampled along its width: out[c][x] for x in the block.
template <typename T>
void widen_row(const T* row, const int64_t* strides, int64_t classes, const int32_t* left, const int32_t* right,
               const float* weight, int64_t width, float* narrow, float* out) {
    const int64_t first = left[0], count = right[width - 1] - first + 1;
    row += first * strides[1];
    // Logits that have their size already: every column is its own source.
    if (count == width && left[width - 1] == right[width - 1] && right[0] == first)
        return read_row(row, strides, classes, count, out, BLOCK);
    read_row(row, strides, classes, count, narrow, NARROW);
    const int64_t done = widen_vectors(narrow, classes, left, right, weight, width, out);
    widen_columns(narrow, classes, left, right, weight, done, width, out);
}

struct Planes {
    float* probabilities;  // [C, H, W] sums, or null
    double* entropy;       // [H, W] sums
    double* maximum;       // [H, W] sums of the largest logit, or null
    double* normaliser;    // [H, W] sums of ln sum exp of (logits minus their maximum) / T; null with maximum
    float* means;          // [C, H, W] mean logits, or null
    double* deviations;    // [H, W] squared deviations from these, summed over the classes; null with means
    int64_t height, width;
};

// One row of one draw, behind `earlier` others: `upper` and `lower` are the two widened rows [C][BLOCK] of half logits, and
// `factor` is 2 / T. A sum of squared deviations from the mean grows by n / (n + 1) times the square of the next one, n the
// draws before it (Welford 1962).
void add_row(const float* __restrict upper, const float* __restrict lower, float weight, float factor, int64_t classes,
             int64_t y, int64_t left, int64_t width, int64_t earlier, const Planes& planes, float* __restrict z) {
    const float rest = 1.0f - weight;
    float maximum[BLOCK], total[BLOCK], dot[BLOCK], inverse[BLOCK];
    for (int64_t x = 0; x < BLOCK; ++x) {
        maximum[x] = -INFINITY;
        total[x] = dot[x] = 0.0f;
    }
    for (int64_t c = 0; c < classes; ++c) {
        const float *a = upper + c * BLOCK, *b = lower + c * BLOCK;
        float* row = z + c * BLOCK;
        for (int64_t x = 0; x < BLOCK; ++x) {
            row[x] = rest * a[x] + weight * b[x];
            maximum[x] = row[x] > maximum[x] ? row[x] : maximum[x];
        }
    }
    const int64_t at = y * planes.width + left;
    if (planes.means != nullptr) {
        // In float64, where the square of every float has its place.
        const double step = 1.0 / static_cast<double>(earlier + 1);
        const double share = static_cast<double>(earlier) * step;
        double sum[BLOCK] = {};
        for (int64_t c = 0; c < classes; ++c) {
            const float* row = z + c * BLOCK;
            float* mean = planes.means + c * planes.height * planes.width + at;
            for (int64_t x = 0; x < width; ++x) {
                const double before = static_cast<double>(mean[x]);
                const double deviation = 2.0 * static_cast<double>(row[x]) - before;
                mean[x] = static_cast<float>(before + deviation * step);
                sum[x] += deviation * deviation;
            }
        }
        for (int64_t x = 0; x < width; ++x) planes.deviations[at + x] += sum[x] * share;
    }
    for (int64_t c = 0; c < classes; ++c) {
        float* row = z + c * BLOCK;
        for (int64_t x = 0; x < BLOCK; ++x) {
            const float shifted = (row[x] - maximum[x]) * factor;
            // Bounded for the product, too: 0 times minus infinity is no number.
            const float bounded = shifted < LOWEST ? LOWEST : shifted;
            const float e = shifted < LOWEST ? 0.0f : exponential(bounded);
            total[x] += e;
            dot[x] += e * bounded;
            row[x] = e;
        }
    }
    for (int64_t x = 0; x < BLOCK; ++x) inverse[x] = 1.0f / total[x];
    if (planes.probabilities != nullptr)
        for (int64_t c = 0; c < classes; ++c) {
            const float* row = z + c * BLOCK;
            float* sum = planes.probabilities + c * planes.height * planes.width + at;
            for (int64_t x = 0; x < width; ++x) sum[x] += row[x] * inverse[x];
        }
    // H = ln sum exp z - sum p z, with z shifted by its maximum.
    for (int64_t x = 0; x < width; ++x) {
        const double h = logarithm(total[x]) - static_cast<double>(dot[x] * inverse[x]);
        planes.entropy[at + x] += h < 0.0 ? 0.0 : h;  // NaN stays NaN
    }
    if (planes.maximum == nullptr) return;
    for (int64_t x = 0; x < width; ++x) {
        const bool is_number = total[x] >= 1.0f;  // a NaN logit makes the sum NaN, the maximum and the logarithm of bits are none
        planes.maximum[at + x] += is_number ? 2.0 * static_cast<double>(maximum[x]) : NAN;
        planes.normaliser[at + x] += is_number ? logarithm(total[x]) : NAN;
    }
}

// Each widened row is the lower one of some output rows and the upper one of the next, so that every draw keeps its last.
template <typename T>
void add(const T* logits, const int64_t* strides, int64_t draws, int64_t classes, float factor, const int32_t* above,
         const int32_t* below, const float* down, const int32_t* left, const int32_t* right, const float* across,
         int64_t top, int64_t bottom, int64_t earlier, const Planes& planes) {
    const int64_t size = classes * BLOCK;
    const int64_t inner[2] = {strides[1], strides[3]};
    std::vector<float> narrow(classes * NARROW), rows((draws + 1) * size), z(size);
    std::vector<float*> kept(draws);
    for (int64_t s = 0; s < draws; ++s) kept[s] = rows.data() + s * size;
    float* spare = rows.data() + draws * size;
    for (int64_t x = 0; x < planes.width; x += BLOCK) {
        const int64_t width = std::min(BLOCK, planes.width - x);
        const auto widen = [&](int64_t s, int64_t y, float* out) {
            const T* row = logits + s * strides[0] + y * strides[2];
            widen_row(row, inner, classes, left + x, right + x, across + x, width, narrow.data(), out);
        };
        int64_t held = -1;  // the low-resolution row that the draws keep
        for (int64_t first = top; first < bottom;) {
            int64_t last = first + 1;  // output rows between the same two low-resolution rows
            while (last < bottom && above[last] == above[first] && below[last] == below[first]) ++last;
            const bool is_between = below[first] != above[first];
            for (int64_t s = 0; s < draws; ++s) {
                if (held != above[first]) widen(s, above[first], kept[s]);
                if (is_between) widen(s, below[first], spare);
                const float* lower = is_between ? spare : kept[s];
                for (int64_t y = first; y < last; ++y)
                    add_row(kept[s], lower, down[y], factor, classes, y, x, width, earlier + s, planes, z.data());
                if (is_between) std::swap(kept[s], spare);
            }
            held = below[first];
            first = last;
        }
    }
}

void finish(const float* probabilities, const double* entropy, int64_t classes, int64_t pixels, int64_t draws, double scale,
            int64_t first, int64_t last, uint8_t* prediction, double* total, double* expected) {
    const double share = 1.0 / static_cast<double>(draws);
    for (int64_t from = first; from < last; from += BLOCK) {
        const int64_t width = std::min(BLOCK, last - from);
        float best[BLOCK];
        int32_t winner[BLOCK];
        double h[BLOCK];
        for (int64_t x = 0; x < BLOCK; ++x) {
            best[x] = -1.0f;
            winner[x] = 0;
            h[x] = 0.0;
        }
        for (int64_t c = 0; c < classes; ++c) {
            const float* sum = probabilities + c * pixels + from;
            for (int64_t x = 0; x < width; ++x) {
                winner[x] = sum[x] > best[x] ? static_cast<int32_t>(c) : winner[x];
                best[x] = sum[x] > best[x] ? sum[x] : best[x];
                const double p = static_cast<double>(sum[x]) * share;
                const double safe = p < 1e-300 ? 1e-300 : p;
                h[x] -= p * logarithm(safe);
            }
        }
        for (int64_t x = 0; x < width; ++x) {
            const double whole = h[x] * scale;
            prediction[from + x] = static_cast<uint8_t>(winner[x]);
            total[from + x] = whole < 0.0 ? 0.0 : whole;
            expected[from + x] = entropy[from + x] * (scale * share);
        }
    }
}

}  // namespace

extern "C" {

// Adds `draws` draws, behind `earlier` others, to the sums for output rows top..bottom-1, in pieces; `factor` is 2 / T.
// Strides are in elements, of draw, class, row and column.
void segunc_add_draws(const void* logits, int32_t bfloat16, const int64_t* strides, int64_t draws, int64_t classes,
                      float factor, const int32_t* above, const int32_t* below, const float* down, const int32_t* left,
                      const int32_t* right, const float* across, int64_t height, int64_t width, int64_t earlier,
                      float* probabilities, double* entropy, double* maximum, double* normaliser, float* means,
                      double* deviations, int64_t top, int64_t bottom, int64_t pieces, int32_t threads) {
    const Planes planes{probabilities, entropy, maximum, normaliser, means, deviations, height, width};
    in_pieces(top, bottom, pieces, threads, [&](int64_t first, int64_t last) {
        if (bfloat16 != 0)
            add(static_cast<const uint16_t*>(logits), strides, draws, classes, factor, above, below, down, left, right,
                across, first, last, earlier, planes);
        else
            add(static_cast<const float*>(logits), strides, draws, classes, factor, above, below, down, left, right,
                across, first, last, earlier, planes);
    });
}

// Maps of pixels first..last-1 from the sums over draws, in pieces: class, and the two entropies times `scale`, in float64:
// epistemic is a small difference of them.
void segunc_finish(const float* probabilities, const double* entropy, int64_t classes, int64_t pixels, int64_t draws,
                   double scale, uint8_t* prediction, double* total, double* expected, int64_t first, int64_t last,
                   int64_t pieces, int32_t threads) {
    in_pieces(first, last, pieces, threads, [&](int64_t from, int64_t to) {
        finish(probabilities, entropy, classes, pixels, draws, scale, from, to, prediction, total, expected);
    });
}
}
