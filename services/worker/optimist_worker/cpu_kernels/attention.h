// Attention for one instruction set; target.h includes this.

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

// One tile of a row's tokens with the heads that share one head of keys.
//
// A token adds up the keys of positions 0 to its own in their order, in blocks from a multiple of 64
// on. In a tree, the keys from its start on are those of the path to the token, so each token has
// its own from that block on: it attends as if the path were no tree.
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
  const int64_t tree_start = call.tree_starts[row];
  const int64_t first_index = call.num_computed[row] + first_token - call.query_starts[row];

  Unit *queries, *weights;
  float *key_panel, *value_panel, *scores, *sums, *maxima, *totals;
  int64_t positions[MOST_QUERIES];
  bool has_tree = false;
  const Element *key_rows[BLOCK], *value_rows[BLOCK];  // Of what is packed; null for none.
  bool is_packed = false;

  Tile(const Attention& call, const Share& share, Scratch& scratch)
      : call(call),
        row(share.row),
        first_token(share.first_token),
        num_tokens(share.num_tokens),
        kv_head(share.kv_head) {
    int64_t sizes[] = {num_queries * depth, num_queries * BLOCK, depth * BLOCK,  BLOCK * width,
                       num_queries * BLOCK, num_queries * width, num_queries,    num_queries};
    for (int64_t& size : sizes) size *= sizeof(float);
    scratch.begin(sizes);
    queries = scratch.take<Unit>(sizes[0]);
    weights = scratch.take<Unit>(sizes[1]);
    key_panel = scratch.take<float>(sizes[2]);
    value_panel = scratch.take<float>(sizes[3]);
    scores = scratch.take<float>(sizes[4]);
    sums = scratch.take<float>(sizes[5]);
    maxima = scratch.take<float>(sizes[6]);
    totals = scratch.take<float>(sizes[7]);
    for (int64_t token = 0; token < num_tokens; ++token) {
      uint64_t path = path_of(token);
      positions[token] =
          path == 0 ? first_index + token : tree_start - 1 + __builtin_popcountll(path);
      has_tree |= path != 0;
    }
  }

  // Bit i is set if node i of the tree is a token of the tile or above it.
  uint64_t path_of(int64_t token) const {
    return call.ancestors == nullptr ? 0 : uint64_t(call.ancestors[first_token + token]);
  }

  void run() {
    read_queries();
    const int64_t end = has_tree ? tree_start / BLOCK * BLOCK : first_index + num_tokens;
    add_keys(0, num_tokens, 0, end);
    for (int64_t token = 0; has_tree && token < num_tokens; ++token)
      add_keys(token, token + 1, end, positions[token] + 1);
    write_output();
  }

  // Adds what some tokens see of the keys at positions `begin` to `end`, from the tree's start on
  // those of the path to the first one; `begin` is a multiple of BLOCK.
  void add_keys(int64_t first, int64_t last, int64_t begin, int64_t end) {
    begin = std::max(begin, first_key(first, last) / BLOCK * BLOCK);
    for (int64_t block = begin; block < end; block += BLOCK) {
      uint64_t visible[MOST_QUERIES], any = 0;
      for (int64_t token = first; token < last; ++token)
        any |= visible[token] = see(positions[token], block);
      if (any == 0) continue;
      int64_t num_keys = std::min(BLOCK, end - block);
      int64_t changed = find_rows(block, num_keys, path_of(first));
      pack_keys(changed, num_keys);
      score(first * group, last * group);
      weigh(visible, first * group, last * group);
      pack_values(changed, num_keys);
      add_values(first * group, last * group);
    }
  }

  // The least key that one of some tokens sees.
  int64_t first_key(int64_t first, int64_t last) const {
    if (call.window == 0) return 0;
    int64_t lowest = *std::min_element(positions + first, positions + last);
    return std::max(int64_t(0), lowest - call.window + 1);
  }

  // Bit i is set if a token at some position sees key `block + i`.
  uint64_t see(int64_t position, int64_t block) const {
    int64_t seen = position - block + 1;
    int64_t hidden = call.window == 0 ? 0 : seen - call.window;
    if (seen <= 0 || hidden >= BLOCK) return 0;
    uint64_t visible = seen >= BLOCK ? ~uint64_t(0) : (uint64_t(1) << seen) - 1;
    return hidden <= 0 ? visible : visible >> hidden << hidden;
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

  // Finds the keys of a block, and returns the first that is not packed already.
  int64_t find_rows(int64_t block, int64_t num_keys, uint64_t path) {
    const int32_t* table = call.block_tables + row * call.table_stride;
    for (int64_t node = tree_start; path != 0 && node < block; ++node) path &= path - 1;
    int64_t changed = BLOCK;
    for (int64_t key = 0; key < BLOCK; ++key) {
      const Element *key_row = nullptr, *value_row = nullptr;
      if (key < num_keys) {
        int64_t index = block + key;
        if (index >= tree_start && path != 0) {
          index = tree_start + __builtin_ctzll(path);
          path &= path - 1;
        }
        int64_t entry = int64_t(table[index / call.block_size]) * call.block_size +
                        index % call.block_size;
        entry = entry * call.num_kv_heads + kv_head;
        key_row = static_cast<const Element*>(call.keys) + entry * call.key_dim;
        value_row = static_cast<const Element*>(call.values) + entry * call.value_dim;
      }
      if (!is_packed || key_rows[key] != key_row) changed = std::min(changed, key);
      key_rows[key] = key_row;
      value_rows[key] = value_row;
    }
    is_packed = true;
    return changed;
  }

  // Lays keys out as `[depth, BLOCK]` units, from the first that changed on.
  void pack_keys(int64_t changed, int64_t num_keys) {
    for (int64_t first = changed / LANES * LANES; first < BLOCK; first += LANES) {
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

  void score(int64_t first, int64_t last) {
    by_rows<4>(last - first, [&](auto rows, int64_t query) {
      constexpr int ROWS = decltype(rows)::value;
      query += first;
      for (int64_t key = 0; key < BLOCK; key += WIDE * LANES) {
        Floats products[ROWS][WIDE] = {};
        add_products(products, queries + query * depth, depth, depth,
                     read_panel(key_panel + key, BLOCK));
        for (int i = 0; i < ROWS; ++i)
          for (int j = 0; j < WIDE; ++j)
            store(scores + (query + i) * BLOCK + key + j * LANES, products[i][j]);
      }
    });
  }

  // Makes weights of scores, in units of powers of 2, and scales what was summed to a new maximum
  // (online softmax, Milakov and Gimelshein 2018).
  void weigh(const uint64_t* visible, int64_t first, int64_t last) {
    for (int64_t query = first; query < last; ++query) {
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

  // Lays values out as `[BLOCK / STEP, width]` units, from the first that changed on.
  void pack_values(int64_t changed, int64_t num_keys) {
    for (int64_t key = changed / STEP * STEP; key < BLOCK; key += STEP) {
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

  void add_values(int64_t first, int64_t last) {
    by_rows<4>(last - first, [&](auto rows, int64_t query) {
      query += first;
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
    add_products(products, weights + query * (BLOCK / STEP), BLOCK / STEP, BLOCK / STEP,
                 read_panel(value_panel + v, width));
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
