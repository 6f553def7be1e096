// One unit of work: a strip of columns and a band of rows of one image's output, for a range of output channels.

#if PACELINE_LEVEL == 2
PACELINE_INLINE F32 fused(F32 a, F32 b, F32 c) { return (F32)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c); }
PACELINE_INLINE F32 broadcast(const float* from) { return (F32)_mm512_set1_ps(*from); }
#elif PACELINE_LEVEL == 1
PACELINE_INLINE F32 fused(F32 a, F32 b, F32 c) { return (F32)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
PACELINE_INLINE F32 broadcast(const float* from) { return (F32)_mm256_broadcast_ss(from); }
#elif PACELINE_LEVEL == 3
PACELINE_INLINE F32 fused(F32 a, F32 b, F32 c) { return (F32)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
PACELINE_INLINE F32 broadcast(const float* from) { return (F32)vld1q_dup_f32(from); }
#else
PACELINE_INLINE F32 fused(F32 a, F32 b, F32 c) { return a * b + c; }
PACELINE_INLINE F32 broadcast(const float* from) { return splat(*from); }
#endif

// Lanes first to last - 1 of what lies there, zeros in the others; nothing else is read.
PACELINE_INLINE F32 load_part(const float* from, size_t first, size_t last) {
    if (first == 0 && last == kLanes) return load<F32>(from);
#if PACELINE_LEVEL == 2
    return (F32)_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << last) - (1u << first)), from);
#elif PACELINE_LEVEL == 1
    const U32 lane = iota();
    const I32 held = (lane >= splat(static_cast<uint32_t>(first))) & (lane < splat(static_cast<uint32_t>(last)));
    return (F32)_mm256_maskload_ps(from, (__m256i)held);
#else
    F32 v = {};
    for (size_t i = first; i < last; i++) v[i] = from[i];
    return v;
#endif
}

PACELINE_INLINE void store_part(float* to, F32 v, size_t count) {
    if (count == kLanes) return store(to, v);
#if PACELINE_LEVEL == 2
    _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), (__m512)v);
#else
    for (size_t i = 0; i < count; i++) to[i] = v[i];
#endif
}

// Every second of the lanes of a and b.
PACELINE_INLINE F32 evens(F32 a, F32 b) {
#if PACELINE_LEVEL == 2
    return (F32)_mm512_permutex2var_ps((__m512)a, (__m512i)(2 * iota()), (__m512)b);
#elif PACELINE_LEVEL == 1
    return (F32)_mm256_permute4x64_pd((__m256d)_mm256_shuffle_ps((__m256)a, (__m256)b, 0x88), 0xd8);
#else
    return F32{a[0], a[2], b[0], b[2]};
#endif
}

// Which of count elements, `shift` from the beginning of a row of `width`, lie within it.
struct Held {
    size_t first, last;
    Held(ptrdiff_t shift, ptrdiff_t width, ptrdiff_t count) {
        const ptrdiff_t low = shift < 0 ? -shift : 0, high = width - shift < count ? width - shift : count;
        first = static_cast<size_t>(low < count ? low : count);
        last = high > static_cast<ptrdiff_t>(first) ? static_cast<size_t>(high) : first;
    }
};

// A register of every stride-th element, of a row's `shift` on; from is the row's.
template <int kStride>
PACELINE_INLINE F32 load_strided(const float* row, ptrdiff_t shift, const Held& low, const Held& high, ptrdiff_t width, size_t stride) {
    if (kStride == 1) return load_part(row + shift, low.first, low.last);
    if (kStride == 2) return evens(load_part(row + shift, low.first, low.last), load_part(row + shift + kLanes, high.first, high.last));
    F32 v = {};
    for (size_t i = 0; i < kLanes; i++) {
        const ptrdiff_t at = shift + static_cast<ptrdiff_t>(i * stride);
        if (at >= 0 && at < width) v[i] = row[at];
    }
    return v;
}

// The lowered input: for each channel and kernel column a plane whose rows have `pitch` elements, each the one that this column
// meets there. Rows of one phase of the stride lie together, so that a kernel row is an offset too. Ascending, because a
// register that is wider than a row runs into the next.
template <int kStride>
inline void lower_strided(const Unit& unit, float* to) {
    const Window& w = *unit.window;
    const Baked& baked = *unit.baked;
    const auto width = static_cast<ptrdiff_t>(baked.size[1]);
    const size_t pitch = unit.strip->pitch;
    for (size_t channel = 0; channel < w.channels / w.groups; channel++) {
        const float* plane = unit.x + channel * baked.size[0] * baked.size[1];
        for (size_t column = 0; column < w.kernel[1]; column++) {
            const ptrdiff_t shift = static_cast<ptrdiff_t>(unit.strip->first * w.stride[1] + column * w.dilation[1]) -
                                    static_cast<ptrdiff_t>(w.padding[1]);
            const Held low(shift, width, kLanes), high(shift + static_cast<ptrdiff_t>(kLanes), width, kLanes);
            for (const Phase& phase : baked.phases) {
                float* row_to = to + phase.base * pitch;
                for (size_t i = 0; i < unit.rows + phase.reach; i++, row_to += pitch) {
                    const ptrdiff_t row = static_cast<ptrdiff_t>((unit.row + i) * w.stride[0] + phase.number) -
                                          static_cast<ptrdiff_t>(w.padding[0]);
                    const bool inside = row >= 0 && row < static_cast<ptrdiff_t>(baked.size[0]);
                    store(row_to, inside ? load_strided<kStride>(plane + row * width, shift, low, high, width, w.stride[1]) : F32{});
                }
            }
            to += baked.plane_rows * pitch;
        }
    }
    store(to, F32{});
}

// kTile registers of output, of each of the channels in turn, over one block of input channels.
template <size_t kTile>
inline void tile_of(const Unit& unit, const Tile& tile) {
    const Baked& baked = *unit.baked;
    const Strip& strip = *unit.strip;
    const uint32_t* firsts = baked.first.data() + tile.block * baked.outs;
    const bool begins = tile.block == 0, ends = tile.block + 1 == baked.blocks, relu = unit.window->relu;
    const char* in = reinterpret_cast<const char*>(tile.in);
    const size_t per_register = kLanes / strip.pitch;
    float* sums = unit.sums;
    for (size_t out = unit.out_first; out < unit.out_last; out++, sums += kTile * kLanes) {
        F32 s[kTile];
        for (size_t r = 0; r < kTile; r++) s[r] = begins ? splat(unit.bias[out]) : load<F32>(sums + r * kLanes);
        const uint32_t last = firsts[out + 1];
        for (uint32_t j = firsts[out]; j < last; j++) {
            const F32 weight = broadcast(baked.values.data() + j);
            const float* from = reinterpret_cast<const float*>(in + strip.offsets[j]);
            for (size_t r = 0; r < kTile; r++) s[r] = fused(weight, load<F32>(from + r * kLanes), s[r]);
        }
        if (!ends) {
            for (size_t r = 0; r < kTile; r++) store(sums + r * kLanes, s[r]);
            continue;
        }
        if (relu)
            for (size_t r = 0; r < kTile; r++) s[r] = s[r] < F32{} ? F32{} : s[r];
        float* to = unit.out + (out * baked.out[0] + tile.row) * baked.out[1] + strip.first;
        if (per_register == 1) {
            for (size_t r = 0; r < kTile; r++, to += baked.out[1]) store_part(to, s[r], strip.columns);
            continue;
        }
        float rest[kTile * kLanes + kLanes];
        for (size_t r = 0; r < kTile; r++) store(rest + r * kLanes, s[r]);
        for (size_t row = 0; row < tile.rows; row++, to += baked.out[1]) store_part(to, load<F32>(rest + row * strip.pitch), strip.columns);
    }
}

inline void unit_of(const Unit& unit) {
    const Window& w = *unit.window;
    const Baked& baked = *unit.baked;
    if (w.stride[1] == 1) lower_strided<1>(unit, unit.lowered);
    else if (w.stride[1] == 2) lower_strided<2>(unit, unit.lowered);
    else lower_strided<0>(unit, unit.lowered);
    const size_t per_register = kLanes / unit.strip->pitch;
    const size_t registers = (unit.rows + per_register - 1) / per_register;
    for (size_t first = 0; first < registers; first += baked.tile) {
        const size_t count = registers - first < baked.tile ? registers - first : baked.tile;
        Tile tile{0, unit.row + first * per_register, 0, unit.lowered + first * kLanes};
        tile.rows = unit.rows - first * per_register < count * per_register ? unit.rows - first * per_register : count * per_register;
        for (; tile.block < baked.blocks; tile.block++) {
            switch (count) {
                case 1: tile_of<1>(unit, tile); break;
                case 2: tile_of<2>(unit, tile); break;
                case 3: tile_of<3>(unit, tile); break;
                case 4: tile_of<4>(unit, tile); break;
                case 5: tile_of<5>(unit, tile); break;
                case 6: tile_of<6>(unit, tile); break;
                case 7: tile_of<7>(unit, tile); break;
                default: tile_of<8>(unit, tile);
            }
        }
    }
}

inline size_t lanes() { return kLanes; }
