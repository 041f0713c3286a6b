// Products with weights in panels, for one instruction set; target.h includes this.

constexpr int VECTORS = PANEL / LANES;

// Writes sums of rows, `[num_rows, num_columns]`, to columns of the output, with bias and residual.
template <class Format>
__attribute__((noinline)) void write_sums(const Product& call, int64_t column, int64_t num_columns,
                                          int64_t row, int64_t num_rows, const float* sums) {
  using Element = typename Format::Element;
  const Element* residual = static_cast<const Element*>(call.residual);
  for (int64_t end = row + num_rows; row < end; ++row)
    for (int64_t first = column; first < column + num_columns; first += LANES, sums += LANES) {
      int64_t left = call.width - first;
      if (left <= 0) continue;
      int64_t at = row * call.width + first;
      Floats sum = load(sums);
      if (call.bias != nullptr) sum += read<FromFloats>(call.bias + first, left);
      if (residual != nullptr) sum += read<Format>(residual + at, left);
      write<Format>(static_cast<Element*>(call.output) + at, sum, left);
    }
}

template <class Format, int ROWS, int WIDTH>
INLINE void write_sums(const Product& call, int64_t column, int64_t row,
                       const Floats (&sums)[ROWS][WIDTH]) {
  float memory[ROWS * WIDTH * LANES];
#pragma GCC unroll 16
  for (int i = 0; i < ROWS; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < WIDTH; ++j) store(memory + (i * WIDTH + j) * LANES, sums[i][j]);
  write_sums<Format>(call, column, WIDTH * LANES, row, ROWS, memory);
}

// Multiplies all rows by a panel of weights, MOST_ROWS by WIDTH vectors at a time.
template <class Format, class Unit, int MOST_ROWS, int WIDTH>
INLINE void multiply_tiles(const Product& call, int64_t panel) {
  const int64_t depth = call.depth * int64_t(sizeof(typename Format::Element)) / sizeof(float);
  const Unit* inputs = static_cast<const Unit*>(call.inputs);
  const float* weights = static_cast<const float*>(call.weights) + panel * depth * PANEL;
  for (int64_t first = 0; first < PANEL; first += WIDTH * LANES)
    by_rows<MOST_ROWS>(call.num_rows, [&](auto rows, int64_t row) {
      Floats sums[decltype(rows)::value][WIDTH] = {};
      add_products(sums, inputs + row * depth, depth, depth, read_panel(weights + first, PANEL));
      write_sums<Format>(call, panel * PANEL + first, row, sums);
    });
}

// Chooses tiles with as many sums as there are registers for; no sum depends on the other rows.
template <class Format, class Unit>
void multiply(const Product& call, int64_t panel) {
  constexpr int STEP = sizeof(float) / sizeof(typename Format::Element);
  if constexpr (LANES == 16)
    multiply_tiles<Format, Unit, 12, VECTORS>(call, panel);
  else if (call.num_rows <= 2)
    // Half a panel has too few sums of so few rows: each waits for its last addition.
    multiply_tiles<Format, Unit, 2, VECTORS>(call, panel);
  else
    multiply_tiles<Format, Unit, STEP == 1 ? 6 : 5, VECTORS / 2>(call, panel);
}

// Reads integers of a pair of inputs and all outputs of a panel as pairs of bfloat16; those of 4
// bits less 8. The high bits of bytes are those of the second half of the outputs.
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
  // A lane has the bytes of two inputs in its upper half. Such integers are exact in bfloat16.
  for (int j = 0; j < VECTORS; ++j) {
    const int at = BITS == 4 ? j % (VECTORS / 2) : j, shift = j < VECTORS / 2 ? 0 : 4;
    Ints bytes = (Ints)widen(reinterpret_cast<const uint16_t*>(from) + at * LANES);
    Ints low = BITS == 4 ? (bytes >> (16 + shift) & 15) - 8 : bytes << 8 >> 24;
    Ints high = BITS == 4 ? (bytes >> (24 + shift) & 15) - 8 : bytes >> 24;
    low = (Ints)__builtin_convertvector(low, Floats) >> 16 & 0xffff;
    high = (Ints)__builtin_convertvector(high, Floats) & -65536;
    pairs[j] = (Floats)(low | high);
  }
}

// The same as `multiply` for weights of 8 or 4 bits: what a group of inputs adds up to is multiplied
// by its scale. Of 4 bits, each group has a value for 0 too, which takes the total of its inputs.
template <int BITS, int MOST_ROWS, class Read>
INLINE void multiply_groups(const Product& call, int64_t panel, Read read_vectors) {
  const int64_t depth = call.depth / 2, group_depth = call.group / 2;
  const int64_t num_groups = call.depth / call.group;
  const Pair* inputs = static_cast<const Pair*>(call.inputs);
  by_rows<MOST_ROWS>(call.num_rows, [&](auto rows, int64_t row) {
    constexpr int ROWS = decltype(rows)::value;
    Floats sums[ROWS][VECTORS] = {};
    for (int64_t group = 0; group < num_groups; ++group) {
      Floats parts[ROWS][VECTORS] = {};
      const int64_t first = group * group_depth;
      add_products(parts, inputs + row * depth + first, depth, group_depth,
                   [&](int64_t k, auto& vectors) { read_vectors(first + k, vectors); });
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
    write_sums<FromHalves>(call, panel * PANEL, row, sums);
  });
}

template <int BITS>
void multiply_integers(const Product& call, int64_t panel) {
  constexpr int MOST_ROWS = LANES == 16 ? 6 : 1;  // Twice as many sums as without groups.
  constexpr int64_t STRIDE = 2 * PANEL * BITS / 8;
  const int64_t depth = call.depth / 2;
  const uint8_t* weights = static_cast<const uint8_t*>(call.weights) + panel * depth * STRIDE;
  auto read_packed = [=](int64_t k, auto& pairs) { read_pairs<BITS>(weights + k * STRIDE, pairs); };
  if (call.num_rows <= (BITS == 4 ? 3 : 1) * MOST_ROWS)
    return multiply_groups<BITS, MOST_ROWS>(call, panel, read_packed);
  static thread_local Scratch scratch;
  const int64_t sizes[] = {depth * PANEL * 4};
  scratch.begin(sizes);
  float* unpacked = scratch.take<float>(sizes[0]);
  for (int64_t k = 0; k < depth; ++k) {
    Floats pairs[VECTORS];
    read_packed(k, pairs);
    for (int j = 0; j < VECTORS; ++j) store(unpacked + k * PANEL + j * LANES, pairs[j]);
  }
  multiply_groups<BITS, MOST_ROWS>(call, panel, read_panel(unpacked, PANEL));
}
