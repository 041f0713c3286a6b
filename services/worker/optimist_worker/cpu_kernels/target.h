// Kernels for one instruction set. kernels.cpp includes this once for each, in a namespace of its
// own, after it has defined LANES (floats of one vector) and HAS_PAIRS (products of pairs of
// bfloat16 with sums in float32, AVX512_BF16).

typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef float AnyFloats __attribute__((vector_size(LANES * 4), aligned(2), may_alias));
typedef int32_t AnyInts __attribute__((vector_size(LANES * 4), aligned(2), may_alias));

INLINE Floats load(const float* from) { return *reinterpret_cast<const AnyFloats*>(from); }
INLINE void store(float* to, Floats numbers) { *reinterpret_cast<AnyFloats*>(to) = numbers; }
INLINE Floats fill(float number) { return Floats{} + number; }
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

INLINE Floats product(Floats sum, float unit, Floats panel) {
  return multiply_add(sum, fill(unit), panel);
}

INLINE Floats product(Floats sum, int32_t unit, Floats panel) {
#if HAS_PAIRS
  return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(unit), (__m512bh)panel);
#else
  Ints units = Ints{} + unit, pairs = (Ints)panel;
  sum = multiply_add(sum, (Floats)(units << 16), (Floats)(pairs << 16));
  return multiply_add(sum, (Floats)(units & -65536), (Floats)(pairs & -65536));
#endif
}

// Adds the products of ROWS rows of units with VECTORS vectors of a panel.
template <int ROWS, int VECTORS, class Unit>
INLINE void add_products(Floats (&sums)[ROWS][VECTORS], const Unit* rows, int64_t row_stride,
                         const float* panel, int64_t panel_stride, int64_t depth) {
  for (int64_t k = 0; k < depth; ++k) {
    Floats vectors[VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) vectors[j] = load(panel + k * panel_stride + j * LANES);
#pragma GCC unroll 16
    for (int i = 0; i < ROWS; ++i) {
      Unit unit = rows[i * row_stride + k];
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) sums[i][j] = product(sums[i][j], unit, vectors[j]);
    }
  }
}

template <int NUMBER, class Run>
INLINE void run_rest(int64_t num_rows, int64_t row, Run run) {
  if constexpr (NUMBER > 0) {
    if (num_rows == NUMBER)
      run(std::integral_constant<int, NUMBER>(), row);
    else
      run_rest<NUMBER - 1>(num_rows, row, run);
  }
}

// Calls `run` with the number of rows, `MOST` at a time, as a constant, and the first of them.
template <int MOST, class Run>
INLINE void by_rows(int64_t num_rows, Run run) {
  int64_t row = 0;
  for (; row + MOST <= num_rows; row += MOST) run(std::integral_constant<int, MOST>(), row);
  run_rest<MOST - 1>(num_rows - row, row, run);
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

constexpr int64_t BLOCK = 64;                      // Keys at a time.
constexpr int WIDE = LANES == 16 ? 4 : 2;          // Vectors of a panel at a time.
constexpr int64_t PER_BLOCK = BLOCK / LANES;       // Vectors of keys.

// Transposes LANES vectors in place, by exchanging ever larger halves.
INLINE void transpose(Floats (&rows)[LANES]) {
#pragma GCC unroll 4
  for (int distance = 1; distance < LANES; distance *= 2) {
    Ints low, high;
    for (int lane = 0; lane < LANES; ++lane) {
      bool is_high = lane & distance;
      low[lane] = is_high ? LANES + lane - distance : lane;
      high[lane] = is_high ? LANES + lane : lane + distance;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
      if (i & distance) continue;
      Floats first = rows[i], second = rows[i + distance];
      rows[i] = __builtin_shuffle(first, second, low);
      rows[i + distance] = __builtin_shuffle(first, second, high);
    }
  }
}

// Memory of one thread.
struct Scratch {
  std::vector<float> memory;
  template <class Unit>
  Unit* take(int64_t& offset, int64_t size) {
    Unit* begin = reinterpret_cast<Unit*>(memory.data() + offset);
    offset += (size + 15) / 16 * 16;
    return begin;
  }
};

// One tile of a row's tokens with the heads that share one head of keys.
template <class Format>
struct Tile {
  using Element = typename Format::Element;
  using Unit = typename Format::Unit;
  static constexpr int STEP = Format::STEP;

  const Attention& call;
  const int64_t row, first_token, num_tokens, kv_head;
  const int64_t group = call.num_heads / call.num_kv_heads;
  const int64_t num_queries = num_tokens * group;
  const int64_t depth = (call.key_dim + STEP - 1) / STEP;
  const int64_t width = (call.value_dim + LANES - 1) / LANES * LANES;
  const int64_t start = call.query_starts[row];
  const int64_t num_computed = call.num_computed[row];
  const int64_t first_index = num_computed + first_token - start;

  Unit *queries, *weights;
  float *key_panel, *value_panel, *scores, *sums, *maxima, *totals;
  const Element *key_rows[BLOCK], *value_rows[BLOCK];

  Tile(const Attention& call, const Share& share, Scratch& scratch)
      : call(call),
        row(share.row),
        first_token(share.first_token),
        num_tokens(share.num_tokens),
        kv_head(share.kv_head) {
    int64_t sizes[] = {num_queries * depth, num_queries * BLOCK, depth * BLOCK,  BLOCK * width,
                       num_queries * BLOCK, num_queries * width, num_queries,    num_queries};
    int64_t total = 0;
    for (int64_t size : sizes) total += (size + 15) / 16 * 16;
    if (int64_t(scratch.memory.size()) < total + 16) scratch.memory.resize(total + 16);
    int64_t offset = (64 - reinterpret_cast<uintptr_t>(scratch.memory.data()) % 64) % 64 / 4;
    queries = scratch.take<Unit>(offset, sizes[0]);
    weights = scratch.take<Unit>(offset, sizes[1]);
    key_panel = scratch.take<float>(offset, sizes[2]);
    value_panel = scratch.take<float>(offset, sizes[3]);
    scores = scratch.take<float>(offset, sizes[4]);
    sums = scratch.take<float>(offset, sizes[5]);
    maxima = scratch.take<float>(offset, sizes[6]);
    totals = scratch.take<float>(offset, sizes[7]);
  }

  void run() {
    read_queries();
    int64_t end = first_index + num_tokens;
    for (int64_t block = first_key() / BLOCK * BLOCK; block < end; block += BLOCK) {
      uint64_t visible[MOST_QUERIES], any = 0;
      for (int64_t token = 0; token < num_tokens; ++token)
        any |= visible[token] = see(first_token + token, block);
      if (any == 0) continue;
      int64_t num_keys = std::min(BLOCK, end - block);
      find_rows(block, num_keys);
      pack_keys(num_keys);
      score();
      weigh(visible);
      pack_values(num_keys);
      add_values();
    }
    write_output();
  }

  // The least key that a token of the tile sees.
  int64_t first_key() const {
    if (call.window == 0) return 0;
    int64_t lowest = call.positions[first_token];
    for (int64_t token = 1; token < num_tokens; ++token)
      lowest = std::min(lowest, call.positions[first_token + token]);
    return std::max(int64_t(0), lowest - call.window + 1);
  }

  // Bit i is set if a token sees key `block + i`.
  uint64_t see(int64_t token, int64_t block) const {
    int64_t seen = num_computed + token - start - block + 1;
    if (seen <= 0) return 0;
    uint64_t visible = seen >= BLOCK ? ~uint64_t(0) : (uint64_t(1) << seen) - 1;
    uint64_t ancestors = call.ancestors == nullptr ? 0 : uint64_t(call.ancestors[token]);
    if (ancestors != 0) {
      int64_t earlier = call.tree_starts[row] - block;
      if (earlier <= -BLOCK)
        visible = 0;
      else if (earlier <= 0)
        visible &= ancestors >> -earlier;
      else if (earlier < BLOCK)
        visible &= ancestors << earlier | ((uint64_t(1) << earlier) - 1);
    }
    if (call.window != 0) {
      int64_t lowest = call.positions[token] - call.window;
      // In a tree, positions are less than indices.
      bool may_hide = lowest >= block || ancestors != 0;
      for (int64_t key = 0; key < BLOCK && may_hide; ++key) {
        int64_t index = block + key;
        bool is_own = index >= num_computed;
        int64_t position = is_own && visible >> key & 1
                               ? call.positions[start + index - num_computed]
                               : index;
        if (position <= lowest) visible &= ~(uint64_t(1) << key);
      }
    }
    return visible;
  }

  void read_queries() {
    const Element* base = static_cast<const Element*>(call.query);
    Unit* to = queries;
    for (int64_t token = 0; token < num_tokens; ++token)
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head, to += depth) {
        const Element* from =
            base + head * call.head_stride + (first_token + token) * call.token_stride;
        read_units(to, from);
        int64_t query = token * group + head - kv_head * group;
        maxima[query] = call.sinks == nullptr ? -INFINITY : call.sinks[head] * LOG2_E;
        totals[query] = call.sinks == nullptr ? 0.0f : 1.0f;
      }
    memset(sums, 0, num_queries * width * sizeof(float));
  }

  void read_units(Unit* to, const Element* from) const {
    int64_t whole = call.key_dim / (STEP * LANES) * LANES;
    for (int64_t k = 0; k < whole; k += LANES)
      store(reinterpret_cast<float*>(to + k), Format::units(from + k * STEP));
    if (whole < depth) {
      Floats tail = read_tail(from + whole * STEP, call.key_dim - whole * STEP);
      memcpy(to + whole, &tail, (depth - whole) * sizeof(Unit));
    }
  }

  // Reads fewer elements than a vector of units takes; the rest is 0.
  static Floats read_tail(const Element* from, int64_t num_elements) {
    Element elements[LANES * STEP] = {};
    memcpy(elements, from, num_elements * sizeof(Element));
    return Format::units(elements);
  }

  void find_rows(int64_t block, int64_t num_keys) {
    const int32_t* table = call.block_tables + row * call.table_stride;
    for (int64_t key = 0; key < num_keys; ++key) {
      int64_t index = block + key;
      int64_t entry = int64_t(table[index / call.block_size]) * call.block_size +
                      index % call.block_size;
      entry = entry * call.num_kv_heads + kv_head;
      key_rows[key] = static_cast<const Element*>(call.keys) + entry * call.key_dim;
      value_rows[key] = static_cast<const Element*>(call.values) + entry * call.value_dim;
    }
  }

  // Lays keys out as `[depth, BLOCK]` units.
  void pack_keys(int64_t num_keys) {
    for (int64_t first = 0; first < BLOCK; first += LANES) {
      if (first >= num_keys) {
        for (int64_t k = 0; k < depth; ++k) store(key_panel + k * BLOCK + first, Floats{});
        continue;
      }
      for (int64_t k = 0; k < depth; k += LANES) {
        Floats rows[LANES];
        int64_t left = call.key_dim - k * STEP;
        if (left >= LANES * STEP && num_keys - first >= LANES) {
#pragma GCC unroll 16
          for (int i = 0; i < LANES; ++i) rows[i] = Format::units(key_rows[first + i] + k * STEP);
        } else {
          for (int i = 0; i < LANES; ++i)
            rows[i] = first + i < num_keys ? read_tail(key_rows[first + i] + k * STEP,
                                                       std::min(left, int64_t(LANES * STEP)))
                                           : Floats{};
        }
        transpose(rows);
        int64_t used = std::min(depth - k, int64_t(LANES));
        if (used == LANES) {
#pragma GCC unroll 16
          for (int i = 0; i < LANES; ++i) store(key_panel + (k + i) * BLOCK + first, rows[i]);
        } else {
          for (int i = 0; i < used; ++i) store(key_panel + (k + i) * BLOCK + first, rows[i]);
        }
      }
    }
  }

  void score() {
    by_rows<4>(num_queries, [&](auto rows, int64_t query) {
      constexpr int ROWS = decltype(rows)::value;
      for (int64_t key = 0; key < BLOCK; key += WIDE * LANES) {
        Floats products[ROWS][WIDE] = {};
        add_products(products, queries + query * depth, depth, key_panel + key, BLOCK, depth);
        for (int i = 0; i < ROWS; ++i)
          for (int j = 0; j < WIDE; ++j)
            store(scores + (query + i) * BLOCK + key + j * LANES, products[i][j]);
      }
    });
  }

  // Makes weights of scores, in units of powers of 2, and scales what was summed to a new maximum
  // (online softmax, Milakov and Gimelshein 2018).
  void weigh(const uint64_t* visible) {
    for (int64_t query = 0; query < num_queries; ++query) {
      float* own = scores + query * BLOCK;
      uint64_t seen = visible[query / group];
      Floats logits[PER_BLOCK];
      for (int64_t j = 0; j < PER_BLOCK; ++j) {
        Floats logit = load(own + j * LANES);
        if (call.softcap == 0.0f)
          logit *= call.scale * LOG2_E;
        else
          logit = tanh(logit * (call.scale / call.softcap)) * (call.softcap * LOG2_E);
        logits[j] = logit;
      }
      if (seen != ~uint64_t(0)) {
        Ints lane;
        for (int i = 0; i < LANES; ++i) lane[i] = 1 << i;
        for (int64_t j = 0; j < PER_BLOCK; ++j) {
          int32_t bits = int32_t(seen >> (j * LANES) & ((uint64_t(1) << LANES) - 1));
          logits[j] = (lane & bits) != 0 ? logits[j] : fill(-INFINITY);
        }
      }
      Floats most = logits[0];
      for (int64_t j = 1; j < PER_BLOCK; ++j) most = largest(most, logits[j]);
      float maximum = std::max(maxima[query], largest_of(most));
      if (maximum == -INFINITY) {
        memset(weights + query * (BLOCK / STEP), 0, BLOCK / STEP * sizeof(Unit));
        continue;
      }
      Floats total = {};
      for (int64_t j = 0; j < PER_BLOCK; ++j) {
        logits[j] = exp2(logits[j] - maximum);
        total += logits[j];
      }
      write_weights(weights + query * (BLOCK / STEP), logits);
      if (maximum != maxima[query]) {
        float factor = exp2(fill(maxima[query] - maximum))[0];
        totals[query] *= factor;
        float* summed = sums + query * width;
        for (int64_t v = 0; v < width; v += LANES) store(summed + v, load(summed + v) * factor);
        maxima[query] = maximum;
      }
      totals[query] += sum_of(total);
    }
  }

  static INLINE void write_weights(float* to, const Floats* numbers) {
    for (int64_t j = 0; j < PER_BLOCK; ++j) store(to + j * LANES, numbers[j]);
  }

  static INLINE void write_weights(int32_t* to, const Floats* numbers) {
    for (int64_t j = 0; j < PER_BLOCK; ++j)
      narrow(reinterpret_cast<uint16_t*>(to) + j * LANES, numbers[j]);
  }

  // Lays values out as `[BLOCK / STEP, width]` units.
  void pack_values(int64_t num_keys) {
    for (int64_t key = 0; key < BLOCK; key += STEP) {
      float* to = value_panel + key / STEP * width;
      if (key >= num_keys) {
        memset(to, 0, width * sizeof(float));
        continue;
      }
      for (int64_t v = 0; v < width; v += LANES) {
        int64_t left = call.value_dim - v;
        Floats first = read<Format>(value_rows[key] + v, left);
        if (STEP == 2) {
          Floats second =
              key + 1 < num_keys ? read<Format>(value_rows[key + 1] + v, left) : Floats{};
          Ints low = (Ints)first;
          first = (Floats)((Ints)second | ((low >> 16) & 0xffff));
        }
        store(to + v, first);
      }
    }
  }

  void add_values() {
    by_rows<4>(num_queries, [&](auto rows, int64_t query) {
      int64_t v = 0;
      for (; v + WIDE * LANES <= width; v += WIDE * LANES)
        add_tile<decltype(rows)::value, WIDE>(query, v);
      for (; v < width; v += LANES) add_tile<decltype(rows)::value, 1>(query, v);
    });
  }

  template <int ROWS, int VECTORS>
  INLINE void add_tile(int64_t query, int64_t v) {
    Floats products[ROWS][VECTORS];
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j)
        products[i][j] = load(sums + (query + i) * width + v + j * LANES);
    add_products(products, weights + query * (BLOCK / STEP), BLOCK / STEP, value_panel + v, width,
                 BLOCK / STEP);
    for (int i = 0; i < ROWS; ++i)
      for (int j = 0; j < VECTORS; ++j)
        store(sums + (query + i) * width + v + j * LANES, products[i][j]);
  }

  void write_output() const {
    Element* base = static_cast<Element*>(call.output);
    for (int64_t token = 0; token < num_tokens; ++token)
      for (int64_t head = 0; head < group; ++head) {
        int64_t query = token * group + head;
        Element* to = base + ((first_token + token) * call.num_heads + kv_head * group + head) *
                                 call.value_dim;
        float factor = 1.0f / totals[query];
        for (int64_t v = 0; v < call.value_dim; v += LANES) {
          Floats numbers = load(sums + query * width + v) * factor;
          write<Format>(to + v, numbers, call.value_dim - v);
        }
      }
  }
};

template <class Format>
void attend(const Attention& call, const Share& share) {
  static thread_local Scratch scratch;
  Tile<Format>(call, share, scratch).run();
}

constexpr int VECTORS = PANEL / LANES;

// Writes sums of rows with a panel, `[num_rows, PANEL]`, to the output, with bias and residual.
template <class Format>
__attribute__((noinline)) void write_sums(const Product& call, int64_t panel, int64_t row,
                                          int64_t num_rows, const float* sums) {
  using Element = typename Format::Element;
  const Element* residual = static_cast<const Element*>(call.residual);
  for (int64_t end = row + num_rows; row < end; ++row)
    for (int64_t first = 0; first < PANEL; first += LANES, sums += LANES) {
      int64_t column = panel * PANEL + first, left = call.width - column;
      if (left <= 0) continue;
      int64_t at = row * call.width + column;
      Floats sum = load(sums);
      if (call.bias != nullptr) sum += read<FromFloats>(call.bias + column, left);
      if (residual != nullptr) sum += read<Format>(residual + at, left);
      write<Format>(static_cast<Element*>(call.output) + at, sum, left);
    }
}

template <class Format, int ROWS>
INLINE void write_sums(const Product& call, int64_t panel, int64_t row,
                       const Floats (&sums)[ROWS][VECTORS]) {
  float memory[ROWS * PANEL];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < VECTORS; ++j) store(memory + i * PANEL + j * LANES, sums[i][j]);
  write_sums<Format>(call, panel, row, ROWS, memory);
}

// Multiplies all rows by a panel of weights; no sum depends on the other rows.
template <class Format, class Unit>
void multiply(const Product& call, int64_t panel) {
  constexpr int MOST_ROWS = LANES == 16 ? 12 : 2;  // As many as there are registers for.
  const int64_t depth = call.depth * int64_t(sizeof(typename Format::Element)) / int64_t(sizeof(Unit));
  const Unit* inputs = static_cast<const Unit*>(call.inputs);
  const float* weights = static_cast<const float*>(call.weights) + panel * depth * PANEL;
  by_rows<MOST_ROWS>(call.num_rows, [&](auto rows, int64_t row) {
    Floats sums[decltype(rows)::value][VECTORS] = {};
    add_products(sums, inputs + row * depth, depth, weights, PANEL, depth);
    write_sums<Format>(call, panel, row, sums);
  });
}

// Reads integers of a pair of inputs and all outputs of a panel as pairs of bfloat16; those of 4 bits
// less 8. The high bits of bytes are those of the second half of the outputs.
template <int BITS>
INLINE void read_pairs(const uint8_t* from, Floats (&pairs)[VECTORS]) {
#if HAS_PAIRS
  if (BITS == 4) {
    // Bit 4 of an index is the lowest of the high bits, so both halves of the table are the same.
    alignas(64) static const uint16_t table[32] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000,
        0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0, 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
        0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    __m512i numbers = _mm512_load_si512(table);
    __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)from));
    pairs[0] = (Floats)_mm512_permutexvar_epi16(bytes, numbers);
    pairs[1] = (Floats)_mm512_permutexvar_epi16(_mm512_srli_epi16(bytes, 4), numbers);
    return;
  }
#endif
  uint16_t numbers[2 * PANEL];
  for (int64_t first = 0; first < 2 * PANEL; first += LANES) {
    const uint8_t* bytes = from + (BITS == 4 ? first % PANEL : first);
#if LANES == 16
    __m128i narrow_bytes = _mm_loadu_si128((const __m128i*)bytes);
    Ints wide = (Ints)(BITS == 4 ? _mm512_cvtepu8_epi32(narrow_bytes)
                                 : _mm512_cvtepi8_epi32(narrow_bytes));
#else
    __m128i narrow_bytes = _mm_loadl_epi64((const __m128i*)bytes);
    Ints wide = (Ints)(BITS == 4 ? _mm256_cvtepu8_epi32(narrow_bytes)
                                 : _mm256_cvtepi8_epi32(narrow_bytes));
#endif
    if (BITS == 4) wide = (first < PANEL ? wide & 15 : wide >> 4) - 8;
    narrow(numbers + first, __builtin_convertvector(wide, Floats));
  }
  for (int j = 0; j < VECTORS; ++j)
    pairs[j] = load(reinterpret_cast<const float*>(numbers) + j * LANES);
}

// The same as `multiply` for weights of 8 or 4 bits: what a group of inputs adds up to is multiplied
// by its scale. Of 4 bits, each group has a value for 0 too, which takes the total of its inputs.
template <int BITS>
void multiply_integers(const Product& call, int64_t panel) {
  constexpr int MOST_ROWS = LANES == 16 ? 6 : 1;
  constexpr int64_t STRIDE = 2 * PANEL * BITS / 8;
  const int64_t depth = call.depth / 2, num_groups = call.depth / call.group;
  const int32_t* inputs = static_cast<const int32_t*>(call.inputs);
  const uint8_t* weights = static_cast<const uint8_t*>(call.weights) + panel * depth * STRIDE;
  auto add = [&](auto rows, int64_t row, auto read_at) {
    constexpr int ROWS = decltype(rows)::value;
    Floats sums[ROWS][VECTORS] = {};
    for (int64_t group = 0; group < num_groups; ++group) {
      Floats parts[ROWS][VECTORS] = {};
      for (int64_t k = group * call.group / 2; k < (group + 1) * call.group / 2; ++k) {
        Floats pairs[VECTORS];
        read_at(k, pairs);
#pragma GCC unroll 8
        for (int i = 0; i < ROWS; ++i) {
          int32_t unit = inputs[(row + i) * depth + k];
#pragma GCC unroll 4
          for (int j = 0; j < VECTORS; ++j) parts[i][j] = product(parts[i][j], unit, pairs[j]);
        }
      }
      int64_t at = (panel * num_groups + group) * PANEL;
      Floats scales[VECTORS], zeros[VECTORS];
#pragma GCC unroll 4
      for (int j = 0; j < VECTORS; ++j) {
        scales[j] = widen(call.scales + at + j * LANES);
        zeros[j] = BITS == 4 ? widen(call.zeros + at + j * LANES) : Floats{};
      }
#pragma GCC unroll 8
      for (int i = 0; i < ROWS; ++i) {
        Floats total = fill(BITS == 4 ? call.totals[(row + i) * num_groups + group] : 0.0f);
#pragma GCC unroll 4
        for (int j = 0; j < VECTORS; ++j) {
          sums[i][j] = multiply_add(sums[i][j], parts[i][j], scales[j]);
          if (BITS == 4) sums[i][j] = multiply_add(sums[i][j], total, zeros[j]);
        }
      }
    }
    write_sums<FromHalves>(call, panel, row, sums);
  };
  if (call.num_rows <= (BITS == 4 ? 3 : 1) * MOST_ROWS) {
    by_rows<MOST_ROWS>(call.num_rows, [&](auto rows, int64_t row) {
      add(rows, row, [&](int64_t k, Floats(&pairs)[VECTORS]) {
        read_pairs<BITS>(weights + k * STRIDE, pairs);
      });
    });
    return;
  }
  static thread_local std::vector<float> memory;
  if (int64_t(memory.size()) < depth * PANEL) memory.resize(depth * PANEL);
  float* unpacked = memory.data();
  for (int64_t k = 0; k < depth; ++k) {
    Floats pairs[VECTORS];
    read_pairs<BITS>(weights + k * STRIDE, pairs);
    for (int j = 0; j < VECTORS; ++j) store(unpacked + k * PANEL + j * LANES, pairs[j]);
  }
  by_rows<MOST_ROWS>(call.num_rows, [&](auto rows, int64_t row) {
    add(rows, row, [&](int64_t k, Floats(&pairs)[VECTORS]) {
      for (int j = 0; j < VECTORS; ++j) pairs[j] = load(unpacked + k * PANEL + j * LANES);
    });
  });
}

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
                             {multiply<FromFloats, float>, multiply<FromHalves, int32_t>},
                             {multiply_integers<8>, multiply_integers<4>}};
