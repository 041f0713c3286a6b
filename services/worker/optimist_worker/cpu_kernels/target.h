// Kernels for one instruction set. kernels.cpp includes this once for each, in a namespace of its
// own, after it has defined LANES (floats of one vector) and HAS_PAIRS (products of pairs of
// bfloat16 with sums in float32, AVX512_BF16).

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef float AnyFloats __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef int32_t AnyInts __attribute__((vector_size(LANES * 4), aligned(2), may_alias));

INLINE Floats load(const float* from) { return *reinterpret_cast<const AnyFloats*>(from); }
INLINE void store(float* to, Floats numbers) { *reinterpret_cast<AnyFloats*>(to) = numbers; }

// `Floats{} + number` would add, as it changes -0.
INLINE Floats fill(float number) {
#if LANES == 16
  return (Floats)_mm512_set1_ps(number);
#else
  return (Floats)_mm256_set1_ps(number);
#endif
}

INLINE Floats largest(Floats a, Floats b) { return a > b ? a : b; }

INLINE Floats multiply_add(Floats sum, Floats a, Floats b) {
#if LANES == 16
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#else
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#endif
}

// Combines all lanes, always in the same order.
template <class Combine>
INLINE float reduce(Floats numbers, Combine combine) {
#pragma GCC unroll 4
  for (int distance = LANES / 2; distance > 0; distance /= 2) {
    Ints other;
    for (int lane = 0; lane < LANES; ++lane) other[lane] = lane ^ distance;
    numbers = combine(numbers, __builtin_shuffle(numbers, other));
  }
  return numbers[0];
}

INLINE float sum_of(Floats numbers) {
  return reduce(numbers, [](Floats a, Floats b) { return a + b; });
}

INLINE float largest_of(Floats numbers) {
  return reduce(numbers, [](Floats a, Floats b) { return largest(a, b); });
}

// 2^x for x <= 127, by the whole part in the exponent and a Taylor series of the rest; 0 from -126
// down.
INLINE Floats exp2(Floats x) {
  const Floats shift = fill(12582912.0f);  // 1.5 * 2^23: the sum has no room for a fraction.
  const Floats low = fill(-126.0f);
  Floats bounded = largest(x, low);
  Floats shifted = bounded + shift;
  Floats rest = bounded - (shifted - shift);
  Floats series = fill(1.52527338e-5f);
  series = multiply_add(fill(1.54035304e-4f), series, rest);
  series = multiply_add(fill(1.33335581e-3f), series, rest);
  series = multiply_add(fill(9.61812911e-3f), series, rest);
  series = multiply_add(fill(5.55041087e-2f), series, rest);
  series = multiply_add(fill(2.40226507e-1f), series, rest);
  series = multiply_add(fill(6.93147181e-1f), series, rest);
  series = multiply_add(fill(1.0f), series, rest);
  Floats power = (Floats)((Ints)series + ((Ints)shifted << 23));
  return x > low ? power : Floats{};
}

constexpr float LOG2_E = 1.44269504f;

INLINE Floats sigmoid(Floats x) {
  Floats size = x < 0.0f ? -x : x;
  Floats power = exp2(size * -LOG2_E);
  return (x < 0.0f ? power : fill(1.0f)) / (1.0f + power);
}

INLINE Floats tanh(Floats x) {
  Floats size = x < 0.0f ? -x : x;
  Floats power = exp2(size * (-2.0f * LOG2_E));
  Floats result = (1.0f - power) / (1.0f + power);
  return x < 0.0f ? -result : result;
}

INLINE Floats widen(const uint16_t* from) {
#if LANES == 16
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
#else
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
#endif
  return (Floats)((Ints)wide << 16);
}

// Rounds to the nearest, ties to even, as PyTorch does.
INLINE uint16_t narrow(float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

INLINE void narrow(uint16_t* to, Floats numbers) {
#if HAS_PAIRS
  _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh((__m512)numbers));
#else
  Ints bits = (Ints)numbers;
  Ints rounded = bits + 0x7fff + ((bits >> 16) & 1);
  rounded = (bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded;
  alignas(64) int32_t lanes[LANES];
  memcpy(lanes, &rounded, sizeof(lanes));
  for (int i = 0; i < LANES; ++i) to[i] = uint16_t(uint32_t(lanes[i]) >> 16);
#endif
}

// An element is a number in memory; a unit is what one lane of a product takes of it.
struct FromFloats {
  using Element = float;
  using Unit = float;
  static constexpr int STEP = 1;
  static INLINE Floats units(const float* from) { return load(from); }
  static INLINE Floats numbers(const float* from) { return load(from); }
  static INLINE void put(float* to, Floats numbers) { store(to, numbers); }
};

struct FromHalves {
  using Element = uint16_t;
  using Unit = float;
  static constexpr int STEP = 1;
  static INLINE Floats units(const uint16_t* from) { return widen(from); }
  static INLINE Floats numbers(const uint16_t* from) { return widen(from); }
  static INLINE void put(uint16_t* to, Floats numbers) { narrow(to, numbers); }
};

#if HAS_PAIRS
struct FromPairs : FromHalves {
  using Unit = int32_t;
  static constexpr int STEP = 2;
  static INLINE Floats units(const uint16_t* from) {
    return (Floats) * reinterpret_cast<const AnyInts*>(from);
  }
};
#else
using FromPairs = FromHalves;
#endif

// Two inputs of a product with pairs of bfloat16.
#if HAS_PAIRS
using Pair = int32_t;

INLINE __m512bh fill(Pair pair) { return (__m512bh)_mm512_set1_epi32(pair); }

INLINE Floats multiply_add(Floats sum, __m512bh pairs, Floats others) {
  return (Floats)_mm512_dpbf16_ps((__m512)sum, pairs, (__m512bh)others);
}
#else
using Pair = WidePair;
#endif

// Adds to sums `[ROWS, WIDTH]` the products of a unit of each row with vectors of the panel.
template <int ROWS, int WIDTH, class Unit>
INLINE void add_products(Floats (&sums)[ROWS][WIDTH], const Unit* units, int64_t stride,
                         const Floats (&vectors)[WIDTH]) {
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i) {
    auto unit = fill(units[i * stride]);
#pragma GCC unroll 4
    for (int j = 0; j < WIDTH; ++j) sums[i][j] = multiply_add(sums[i][j], unit, vectors[j]);
  }
}

template <int ROWS, int WIDTH>
INLINE void add_products(Floats (&sums)[ROWS][WIDTH], const WidePair* units, int64_t stride,
                         const Floats (&vectors)[WIDTH]) {
  Floats halves[WIDTH];
  for (int j = 0; j < WIDTH; ++j) halves[j] = (Floats)((Ints)vectors[j] << 16);
  add_products(sums, &units->low, 2 * stride, halves);
  for (int j = 0; j < WIDTH; ++j) halves[j] = (Floats)((Ints)vectors[j] & -65536);
  add_products(sums, &units->high, 2 * stride, halves);
}

// Adds the products of ROWS rows of units with vectors that are read for each unit.
template <int ROWS, int WIDTH, class Unit, class Read>
INLINE void add_products(Floats (&sums)[ROWS][WIDTH], const Unit* rows, int64_t row_stride,
                         int64_t depth, Read read_vectors) {
  for (int64_t k = 0; k < depth; ++k) {
    Floats vectors[WIDTH];
    read_vectors(k, vectors);
    add_products(sums, rows + k, row_stride, vectors);
  }
}

// Reads the vectors of a panel.
INLINE auto read_panel(const float* panel, int64_t stride) {
  return [=](int64_t k, auto& vectors) {
#pragma GCC unroll 4
    for (int j = 0; j < int(sizeof(vectors) / sizeof(vectors[0])); ++j)
      vectors[j] = load(panel + k * stride + j * LANES);
  };
}

template <int MOST, class Run>
INLINE void run_with(int64_t num_rows, int64_t row, Run run) {
  if constexpr (MOST > 0) {
    if (num_rows == MOST)
      run(std::integral_constant<int, MOST>(), row);
    else
      run_with<MOST - 1>(num_rows, row, run);
  }
}

// Calls `run` with a number of rows, `MOST` or about as many for each call, and the first of them.
template <int MOST, class Run>
INLINE void by_rows(int64_t num_rows, Run run) {
  const int64_t num_calls = (num_rows + MOST - 1) / MOST;
  for (int64_t call = 0; call < num_calls; ++call) {
    int64_t row = num_rows * call / num_calls, end = num_rows * (call + 1) / num_calls;
    run_with<MOST>(end - row, row, run);
  }
}

// Reads numbers, or the last few of a row with zeros after them.
template <class Format>
INLINE Floats read(const typename Format::Element* from, int64_t num_left) {
  if (num_left >= LANES) return Format::numbers(from);
  typename Format::Element elements[LANES] = {};
  memcpy(elements, from, num_left * sizeof(elements[0]));
  return Format::numbers(elements);
}

template <class Format>
INLINE void write(typename Format::Element* to, Floats numbers, int64_t num_left) {
  if (num_left >= LANES) return Format::put(to, numbers);
  typename Format::Element elements[LANES];
  Format::put(elements, numbers);
  memcpy(to, elements, num_left * sizeof(elements[0]));
}

#include "attention.h"
#include "choice.h"
#include "product.h"
#include "recurrence.h"

// Norms a vector (RMSNorm).
template <class From, class To>
INLINE void norm(const typename From::Element* from, const float* weight, float epsilon,
                 int64_t size, typename To::Element* to) {
  Floats squares = {};
  for (int64_t i = 0; i < size; i += LANES) {
    Floats numbers = read<From>(from + i, size - i);
    squares = multiply_add(squares, numbers, numbers);
  }
  float factor = 1.0f / std::sqrt(sum_of(squares) / float(size) + epsilon);
  for (int64_t i = 0; i < size; i += LANES) {
    Floats numbers = read<From>(from + i, size - i) * factor;
    write<To>(to + i, numbers * read<FromFloats>(weight + i, size - i), size - i);
  }
}

template <class Format>
void norm(const Norm& call, int64_t row) {
  using Element = typename Format::Element;
  norm<Format, Format>(static_cast<const Element*>(call.inputs) + row * call.size, call.weight,
                       call.epsilon, call.size,
                       static_cast<Element*>(call.output) + row * call.size);
}

template <class Format>
void gate(const Gate& call, int64_t row) {
  using Element = typename Format::Element;
  const Element* from = static_cast<const Element*>(call.inputs) + row * 2 * call.size;
  Element* to = static_cast<Element*>(call.output) + row * call.size;
  for (int64_t i = 0; i < call.size; i += LANES) {
    Floats x = read<Format>(from + i, call.size - i);
    Floats factor = call.is_gelu ? 0.5f + 0.5f * tanh(0.79788456f * (x + 0.044715f * x * x * x))
                                 : sigmoid(x);
    Floats other = read<Format>(from + call.size + i, call.size - i);
    write<Format>(to + i, x * factor * other, call.size - i);
  }
}

template <class From, class To>
INLINE void rotate_head(const typename From::Element* from, const typename To::Element* cosine,
                        const typename To::Element* sine, int64_t half, typename To::Element* to) {
  for (int64_t i = 0; i < half; i += LANES) {
    int64_t left = half - i, j = half + i;
    Floats low = read<From>(from + i, left), high = read<From>(from + j, left);
    write<To>(to + i, low * read<To>(cosine + i, left) - high * read<To>(sine + i, left), left);
    write<To>(to + j, high * read<To>(cosine + j, left) + low * read<To>(sine + j, left), left);
  }
}

template <class Format>
void rotate(const Rotation& call, int64_t token) {
  using Element = typename Format::Element;
  const int64_t dim = call.dim, half = dim / 2;
  const int64_t num_heads = call.num_queries + 2 * call.num_keys;
  const Element* from = static_cast<const Element*>(call.projected) + token * num_heads * dim;
  const Element* cosine = static_cast<const Element*>(call.cosine) + token * dim;
  const Element* sine = static_cast<const Element*>(call.sine) + token * dim;
  const int64_t index = call.slots[token] * call.num_keys;
  Element* queries = static_cast<Element*>(call.queries) + token * call.num_queries * dim;
  Element* keys = static_cast<Element*>(call.keys) + index * dim;
  for (int64_t head = 0; head < call.num_queries + call.num_keys; ++head) {
    bool is_query = head < call.num_queries;
    Element* to = is_query ? queries + head * dim : keys + (head - call.num_queries) * dim;
    const float* weight = is_query ? call.query_weight : call.key_weight;
    float epsilon = is_query ? call.query_epsilon : call.key_epsilon;
    if (weight == nullptr) {
      rotate_head<Format, Format>(from + head * dim, cosine, sine, half, to);
    } else {
      float normed[MOST_DIM];
      norm<Format, FromFloats>(from + head * dim, weight, epsilon, dim, normed);
      rotate_head<FromFloats, Format>(normed, cosine, sine, half, to);
    }
  }
  memcpy(static_cast<Element*>(call.values) + index * dim,
         from + (call.num_queries + call.num_keys) * dim, call.num_keys * dim * sizeof(Element));
}

constexpr Kernels KERNELS = {{attend<FromFloats>, attend<FromPairs>},
                             {norm<FromFloats>, norm<FromHalves>},
                             {gate<FromFloats>, gate<FromHalves>},
                             {rotate<FromFloats>, rotate<FromHalves>},
                             {multiply<FromFloats, float>, multiply<FromHalves, Pair>},
                             {multiply_integers<8>, multiply_integers<4>},
                             {choose<FromFloats>, choose<FromHalves>},
                             scan,
                             HAS_PAIRS};
