// Conversions between tile classes and storage formats. Included by tile_prims_impl.h alone.
#pragma once

#include "kernels/pointwise/tile_plain_impl.h"
#include "kernels/pointwise/vector_impl.h"

namespace staticrt {
namespace {

template <class From, class To>
int convert(SRT_PRIM_ARGS) {
  if constexpr (std::is_same_v<To, uint8_t>) {  // class bool
    loop1<From, To>(dst, a, n, [](From x) -> To { return x != From(0); });
  } else {
    loop1<From, To>(dst, a, n, [](From x) { return static_cast<To>(x); });
  }
  return 0;
}

template <class T>
T bits_as(uint32_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

uint16_t to_bfloat16(float x) {
  const uint32_t bits = bits_of(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
}
float from_bfloat16(uint16_t x) {
  return bits_as<float>(static_cast<uint32_t>(x) << 16);
}

// float16 through the conversion instructions where the set has them.
uint16_t to_half_one(float x) {
#ifdef __aarch64__
  const auto half = static_cast<__fp16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
#else
  return c10::detail::fp16_ieee_from_fp32_value(x);
#endif
}
float from_half_one(uint16_t x) {
#ifdef __aarch64__
  __fp16 half;
  std::memcpy(&half, &x, sizeof half);
  return half;
#else
  return c10::detail::fp16_ieee_to_fp32_value(x);
#endif
}

#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
constexpr int64_t kHalfLanes = 8;
__m256 load_half(const uint16_t* in) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in)));
}
void store_half(uint16_t* out, __m256 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out),
                   _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
#endif

int load_half_tile(SRT_PRIM_ARGS) {
  const uint16_t* in = static_cast<const uint16_t*>(a);
  float* out = static_cast<float*>(dst);
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  for (; i + kHalfLanes <= n; i += kHalfLanes) _mm256_storeu_ps(out + i, load_half(in + i));
#endif
  for (; i < n; ++i) out[i] = from_half_one(in[i]);
  return 0;
}

int store_half_tile(SRT_PRIM_ARGS) {
  const float* in = static_cast<const float*>(a);
  uint16_t* out = static_cast<uint16_t*>(dst);
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  for (; i + kHalfLanes <= n; i += kHalfLanes) store_half(out + i, _mm256_loadu_ps(in + i));
#endif
  for (; i < n; ++i) out[i] = to_half_one(in[i]);
  return 0;
}

int round_half_tile(SRT_PRIM_ARGS) {
  const float* in = static_cast<const float*>(a);
  float* out = static_cast<float*>(dst);
  int64_t i = 0;
#if defined(CPU_CAPABILITY_AVX2) || defined(CPU_CAPABILITY_AVX512)
  for (; i + kHalfLanes <= n; i += kHalfLanes) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm256_cvtps_ph(
                                  _mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)));
  }
#endif
  for (; i < n; ++i) out[i] = from_half_one(to_half_one(in[i]));
  return 0;
}

int load_bfloat16(SRT_PRIM_ARGS) {
  loop1<uint16_t, float>(dst, a, n, [](uint16_t x) { return from_bfloat16(x); });
  return 0;
}
int store_bfloat16(SRT_PRIM_ARGS) {
  loop1<float, uint16_t>(dst, a, n, [](float x) { return to_bfloat16(x); });
  return 0;
}
int round_bfloat16(SRT_PRIM_ARGS) {
  loop1<float, float>(dst, a, n, [](float x) { return from_bfloat16(to_bfloat16(x)); });
  return 0;
}

template <class T>
int round_int(SRT_PRIM_ARGS) {
  loop1<int64_t, int64_t>(dst, a, n, [](int64_t x) -> int64_t { return static_cast<T>(x); });
  return 0;
}
template <class T>
int load_int(SRT_PRIM_ARGS) {
  loop1<T, int64_t>(dst, a, n, [](T x) -> int64_t { return x; });
  return 0;
}
template <class T>
int store_int(SRT_PRIM_ARGS) {
  loop1<int64_t, T>(dst, a, n, [](int64_t x) -> T { return static_cast<T>(x); });
  return 0;
}

// What the conversion instruction gives for numbers the target cannot hold, without undefined behaviour.
template <class To, class From>
To truncate_to(From x) {
  constexpr From kEnd = static_cast<From>(2) * static_cast<From>(std::numeric_limits<To>::max() / 2 + 1);
  return x >= -kEnd && x < kEnd ? static_cast<To>(x) : std::numeric_limits<To>::min();
}

template <class From>
int float_to_int64(SRT_PRIM_ARGS) {
  loop1<From, int64_t>(dst, a, n, [](From x) { return truncate_to<int64_t>(x); });
  return 0;
}

template <class From, class To>
int float_to_int(SRT_PRIM_ARGS) {
  // Narrow targets go through a wider integer, as c10::convert and the compiler do.
  using Via = std::conditional_t<std::is_same_v<To, uint8_t>, int64_t, int32_t>;
  loop1<From, int64_t>(dst, a, n, [](From x) -> int64_t { return static_cast<To>(truncate_to<Via>(x)); });
  return 0;
}

// memcpy of few bytes without a call.
void copy_bytes(char* out, const char* in, int64_t n) {
  const auto move = [&](auto count) {
    std::memcpy(out, in, count);
    out += count;
    in += count;
  };
  using std::integral_constant;
  for (; n >= 64; n -= 64) move(integral_constant<size_t, 64>{});
  if (n & 32) move(integral_constant<size_t, 32>{});
  if (n & 16) move(integral_constant<size_t, 16>{});
  if (n & 8) move(integral_constant<size_t, 8>{});
  if (n & 4) move(integral_constant<size_t, 4>{});
  if (n & 2) move(integral_constant<size_t, 2>{});
  if (n & 1) *out = *in;
}

// One row: of n elements, or of one that is repeated.
template <class T, bool is_single>
void copy_row(T* out, const T* in, int64_t n) {
  if constexpr (!is_single) {
    copy_bytes(reinterpret_cast<char*>(out), reinterpret_cast<const char*>(in),
               n * static_cast<int64_t>(sizeof(T)));
  } else if constexpr (sizeof(T) == sizeof(float)) {
    const simd::Vec value = simd::splat_bits(reinterpret_cast<const float*>(in));
    auto* to = reinterpret_cast<float*>(out);
    simd::for_vectors(n, [&](int64_t i, int k) { simd::store_up_to(to + i, value, k); });
  } else {
    std::fill_n(out, n, *in);
  }
}

template <class T>
void copy_rows(char* dst, RowStrides dst_strides, const char* src, RowStrides src_strides, int64_t n,
               int64_t rows) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(T));
  const auto each = [&](const auto& copy) {
    for (int64_t r = 0; r < rows; ++r, dst += dst_strides.row, src += src_strides.row)
      copy(reinterpret_cast<T*>(dst), reinterpret_cast<const T*>(src));
  };
  if (dst_strides.element == kSize && src_strides.element == kSize) {
    each([&](T* out, const T* in) { copy_row<T, false>(out, in, n); });
  } else if (dst_strides.element == kSize && src_strides.element == 0) {
    constexpr int64_t kLanes = simd::kWidth * static_cast<int64_t>(sizeof(float)) / kSize;
    typedef T Lanes __attribute__((vector_size(kLanes * kSize), aligned(1), may_alias));
    const auto vectors = [&](auto count) {
      each([&](T* out, const T* in) {
        for (size_t k = 0; k < count; ++k) reinterpret_cast<Lanes*>(out)[k] = Lanes{} + *in;
      });
    };
    using std::integral_constant;
    if (n == kLanes) return vectors(integral_constant<size_t, 1>{});
    if (n == 2 * kLanes) return vectors(integral_constant<size_t, 2>{});
    if (n == 3 * kLanes) return vectors(integral_constant<size_t, 3>{});
    each([&](T* out, const T* in) { copy_row<T, true>(out, in, n); });
  } else {
    each([&](T* out, const T* in) {
      for (int64_t i = 0; i < n; ++i) {
        *reinterpret_cast<T*>(reinterpret_cast<char*>(out) + i * dst_strides.element) =
            *reinterpret_cast<const T*>(reinterpret_cast<const char*>(in) + i * src_strides.element);
      }
    });
  }
}

template <class From>
void add_conversions_from(PrimTable& table, TileClass from) {
  PrimFn* row = table.convert[static_cast<int>(from)];
  row[static_cast<int>(TileClass::kF32)] = &convert<From, float>;
  row[static_cast<int>(TileClass::kF64)] = &convert<From, double>;
  if constexpr (std::is_floating_point_v<From>) {
    row[static_cast<int>(TileClass::kI64)] = &float_to_int64<From>;
  } else {
    row[static_cast<int>(TileClass::kI64)] = &convert<From, int64_t>;
  }
  row[static_cast<int>(TileClass::kBool)] = &convert<From, uint8_t>;
}

template <class T>
void add_int_format(PrimTable& table, RawFormat format) {
  const int k = static_cast<int>(format);
  table.load[k] = &load_int<T>;
  table.store[k] = &store_int<T>;
  table.round[k] = &round_int<T>;
  table.float_to_int[0][k] = &float_to_int<float, T>;
  table.float_to_int[1][k] = &float_to_int<double, T>;
}

void add_conversions(PrimTable& table) {
  add_conversions_from<float>(table, TileClass::kF32);
  add_conversions_from<double>(table, TileClass::kF64);
  add_conversions_from<int64_t>(table, TileClass::kI64);
  add_conversions_from<uint8_t>(table, TileClass::kBool);
  const int bf16 = static_cast<int>(RawFormat::kBFloat16);
  table.load[bf16] = &load_bfloat16;
  table.store[bf16] = &store_bfloat16;
  table.round[bf16] = &round_bfloat16;
  const int half = static_cast<int>(RawFormat::kHalf);
  table.load[half] = &load_half_tile;
  table.store[half] = &store_half_tile;
  table.round[half] = &round_half_tile;
  add_int_format<int32_t>(table, RawFormat::kInt32);
  add_int_format<int16_t>(table, RawFormat::kInt16);
  add_int_format<int8_t>(table, RawFormat::kInt8);
  add_int_format<uint8_t>(table, RawFormat::kUInt8);
  table.copy_rows[0] = &copy_rows<uint8_t>;
  table.copy_rows[1] = &copy_rows<uint16_t>;
  table.copy_rows[2] = &copy_rows<uint32_t>;
  table.copy_rows[3] = &copy_rows<uint64_t>;
}

}  // namespace
}  // namespace staticrt
