// bf16-coded: one block at a time (bf16_coded.py has the layout). Plain loops, which the compiler turns into vector code.

// Signs with mantissas, and exponents, of values rounded to bfloat16.
inline void split_block(const float* x, size_t n, uint8_t* signs, uint8_t* exponents) {
    uint16_t halves[kBlock];
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        std::memcpy(&bits, x + i, 4);
        const uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
        halves[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > kInfinityBits ? 0x7fc0u : rounded);
    }
    for (size_t i = 0; i < n; i++) {
        signs[i] = static_cast<uint8_t>((halves[i] >> 8 & 0x80u) | (halves[i] & 0x7fu));
        exponents[i] = static_cast<uint8_t>(halves[i] >> 7);
    }
}

// The coding of the fewest bytes; of equal ones the least width, then base.
inline Coding best_of(const uint8_t* exponents, size_t n) {
    uint16_t counts[4][256] = {};  // four, so that equal neighbours do not wait for each other
    for (size_t i = 0; i < n; i++) counts[i % 4][exponents[i]]++;
    size_t least_used = 256, most_used = 0;
    uint32_t sums[256 + 128 + 1];
    sums[0] = 0;
    for (size_t e = 0; e < 256; e++) {
        const uint32_t count = counts[0][e] + counts[1][e] + counts[2][e] + counts[3][e];
        sums[e + 1] = sums[e] + count;
        if (count) least_used = least_used < e ? least_used : e, most_used = e;
    }
    if (least_used == most_used) return {static_cast<uint8_t>(least_used), 0, 0};
    for (size_t e = 256; e < 256 + 128; e++) sums[e + 1] = sums[256];
    const size_t planes = (n + 7) / 8;
    size_t least = kRaw * planes;
    Coding found = {0, kRaw, 0};
    for (unsigned width = kRaw - 1; width > 0; width--) {
        const size_t window = (size_t{1} << width) - 1;
        // The first window with the most elements: it begins at an exponent that occurs, or at one so low that it holds all to the right.
        const size_t from = least_used + 1 > window ? least_used + 1 - window : 0;
        uint32_t inside = 0;
        size_t base = 0;
        for (size_t e = from; e <= most_used; e++) {
            const uint32_t here = sums[e + window] - sums[e];
            if (here > inside) inside = here, base = e;
        }
        const size_t size = width * planes + n - inside;
        if (size <= least) least = size, found = {static_cast<uint8_t>(base), static_cast<uint8_t>(width), static_cast<uint16_t>(n - inside)};
    }
    return found;
}

// Eight bytes of eight bits each, transposed (Warren, Hacker's Delight, section 7-3).
PACELINE_INLINE uint64_t transposed(uint64_t x) {
    uint64_t t = (x ^ (x >> 7)) & 0x00aa00aa00aa00aaull;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000cccc0000ccccull;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000f0f0f0f0ull;
    return x ^ t ^ (t << 28);
}

// Planes of `width` bits and the exponents without a code.
inline void write_codes(const uint8_t* exponents, size_t n, const Coding& coding, uint8_t* planes, uint8_t* others) {
    if (!coding.width) return;
    const unsigned top = (1u << coding.width) - 1;
    const bool raw = coding.width == kRaw;
    uint8_t codes[kBlock] = {};
    for (size_t i = 0; i < n; i++) {
        const uint8_t above = static_cast<uint8_t>(exponents[i] - (raw ? 0 : coding.base));
        const bool coded = raw || (exponents[i] >= coding.base && above < top);
        codes[i] = coded ? above : static_cast<uint8_t>(top);
    }
    for (size_t i = 0, seen = 0; seen < coding.escapes; i++)
        if (codes[i] == top) others[seen++] = exponents[i];
    for (size_t first = 0; first < n; first += 64) {
        const size_t bytes = n - first < 64 ? (n - first + 7) / 8 : 8;
        for (size_t group = 0; group < bytes; group++) {
            uint64_t eight;
            std::memcpy(&eight, codes + first + 8 * group, 8);
            eight = transposed(eight);
            for (unsigned bit = 0; bit < coding.width; bit++) planes[bit * bytes + group] = static_cast<uint8_t>(eight >> 8 * bit);
        }
        planes += coding.width * bytes;
    }
}

// Codes of `kWidth` bits from planes.
template <unsigned kWidth>
inline void gather_codes(const uint8_t* planes, size_t n, uint8_t* codes) {
    size_t first = 0;
    for (; first + 64 <= n; first += 64, planes += 8 * kWidth)
        for (size_t group = 0; group < 8; group++) {
            uint64_t eight = 0;
            for (unsigned bit = 0; bit < kWidth; bit++) eight |= static_cast<uint64_t>(planes[8 * bit + group]) << 8 * bit;
            eight = transposed(eight);
            std::memcpy(codes + first + 8 * group, &eight, 8);
        }
    const size_t bytes = (n - first + 7) / 8;
    for (size_t group = 0; group < bytes; group++) {
        uint64_t eight = 0;
        for (unsigned bit = 0; bit < kWidth; bit++) eight |= static_cast<uint64_t>(planes[bit * bytes + group]) << 8 * bit;
        eight = transposed(eight);
        const size_t at = first + 8 * group;
        std::memcpy(codes + at, &eight, n - at < 8 ? n - at : 8);
    }
}

// The exponents of a block. False for codes that no encoder writes.
inline bool read_codes(const uint8_t* planes, const uint8_t* others, size_t n, const Coding& coding, uint8_t* exponents) {
    switch (coding.width) {
        case 0: std::memset(exponents, coding.base, n); return true;
        case 1: gather_codes<1>(planes, n, exponents); break;
        case 2: gather_codes<2>(planes, n, exponents); break;
        case 3: gather_codes<3>(planes, n, exponents); break;
        case 4: gather_codes<4>(planes, n, exponents); break;
        case 5: gather_codes<5>(planes, n, exponents); break;
        case 6: gather_codes<6>(planes, n, exponents); break;
        case 7: gather_codes<7>(planes, n, exponents); break;
        default: gather_codes<8>(planes, n, exponents);
    }
    if (coding.width == kRaw) return true;
    const uint8_t top = static_cast<uint8_t>((1u << coding.width) - 1);
    uint8_t most = 0;
    uint16_t escapes = 0;
    for (size_t i = 0; i < n; i++) escapes = static_cast<uint16_t>(escapes + (exponents[i] == top));
    for (size_t i = 0; i < n; i++) {
        const uint8_t code = exponents[i] == top ? 0 : exponents[i];
        most = code > most ? code : most;
    }
    if (escapes != coding.escapes || most + coding.base > 255) return false;
    if (!escapes) {
        for (size_t i = 0; i < n; i++) exponents[i] = static_cast<uint8_t>(exponents[i] + coding.base);
        return true;
    }
    size_t places[kBlock], seen = 0;
    for (size_t i = 0; seen < escapes; i++) {
        places[seen] = i;
        seen += exponents[i] == top;
    }
    for (size_t i = 0; i < n; i++) exponents[i] = static_cast<uint8_t>(exponents[i] + coding.base);
    for (size_t j = 0; j < escapes; j++) exponents[places[j]] = others[j];
    return true;
}

inline void join_block(const uint8_t* signs, const uint8_t* exponents, size_t n, int mode, float* out) {
    float values[kBlock];
    for (size_t i = 0; i < n; i++) {
        const uint32_t bits = (signs[i] & 0x80u) << 24 | static_cast<uint32_t>(exponents[i]) << 23 | (signs[i] & 0x7fu) << 16;
        std::memcpy(values + i, &bits, 4);
    }
    if (mode == kSet)
        std::memcpy(out, values, 4 * n);
    else if (mode == kAdd)
        for (size_t i = 0; i < n; i++) out[i] += values[i];
    else
        for (size_t i = 0; i < n; i++) out[i] -= values[i];
}
