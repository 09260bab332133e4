// Work in pieces on the threads of torch, by OpenMP; one after the other where the compiler has none.

#pragma once

#include <cstdint>

#ifdef _OPENMP
constexpr int32_t HAS_THREADS = 1;
#else
constexpr int32_t HAS_THREADS = 0;
#endif

// Calls work(first, last) for pieces of first..last-1.
template <typename Work>
void in_pieces(int64_t first, int64_t last, int64_t pieces, int32_t threads, const Work& work) {
    const int64_t count = last - first;
#ifdef _OPENMP
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (threads > 1)
#endif
    for (int64_t piece = 0; piece < pieces; ++piece) {
        const int64_t from = first + count * piece / pieces;
        const int64_t to = first + count * (piece + 1) / pieces;
        if (from < to) work(from, to);
    }
}

extern "C" int32_t segunc_has_threads() { return HAS_THREADS; }
