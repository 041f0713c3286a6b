// Gated delta rules: matrices of heads, each moved over the tokens of paths that begin with it.

// Moves N vectors of each row of a matrix, from column `first` on. A replay, which has no rates, does
// to a number what a scan does to it: one product, then one product that is added.
template <int N>
INLINE void move_columns(const Scan& call, const float* from, float* to, int64_t first,
                         int64_t token, int64_t head, int64_t key_head) {
  const int64_t size = call.value_dim, left = size - first;
  const int64_t row = token * call.num_heads + head;
  const float* keys = call.keys + (token * call.num_key_heads + key_head) * call.key_dim;
  const float* values = call.values + row * size + first;
  const Floats decay = fill(call.decays[row]);
  Floats added[N];
  if (call.rates == nullptr) {
    for (int n = 0; n < N; ++n) added[n] = read<FromFloats>(values + n * LANES, left - n * LANES);
  } else {
    Floats known[N] = {};
    for (int64_t i = 0; i < call.key_dim; ++i) {
      const Floats key = fill(keys[i]);
      for (int n = 0; n < N; ++n) {
        const int64_t place = i * size + first + n * LANES, num_left = left - n * LANES;
        const Floats kept = read<FromFloats>(from + place, num_left) * decay;
        write<FromFloats>(to + place, kept, num_left);
        known[n] = multiply_add(known[n], key, kept);
      }
    }
    const Floats rate = fill(call.rates[row]);
    for (int n = 0; n < N; ++n) {
      const int64_t num_left = left - n * LANES;
      added[n] = (read<FromFloats>(values + n * LANES, num_left) - known[n]) * rate;
      write<FromFloats>(call.added + row * size + first + n * LANES, added[n], num_left);
    }
  }
  const float* queries = call.rates == nullptr
                             ? keys
                             : call.queries + (token * call.num_key_heads + key_head) * call.key_dim;
  Floats recalled[N] = {};
  for (int64_t i = 0; i < call.key_dim; ++i) {
    const Floats key = fill(keys[i]), query = fill(queries[i]);
    for (int n = 0; n < N; ++n) {
      const int64_t place = i * size + first + n * LANES, num_left = left - n * LANES;
      Floats kept = call.rates == nullptr ? read<FromFloats>(from + place, num_left) * decay
                                          : read<FromFloats>(to + place, num_left);
      kept = multiply_add(kept, key, added[n]);
      write<FromFloats>(to + place, kept, num_left);
      recalled[n] = multiply_add(recalled[n], query, kept);
    }
  }
  if (call.rates == nullptr) return;
  for (int n = 0; n < N; ++n)
    write<FromFloats>(call.recalled + row * size + first + n * LANES, recalled[n],
                      left - n * LANES);
}

// Takes one head of a state over all tokens on its paths.
inline void scan(const Scan& call, int64_t part) {
  const int64_t head = part % call.num_heads, key_head = head * call.num_key_heads / call.num_heads;
  const int64_t state = part / call.num_heads % call.num_states;
  const int64_t layer = part / call.num_heads / call.num_states;
  const int64_t size = call.key_dim * call.value_dim;
  float* own = call.states + layer * call.layer_stride + call.slots[state] * call.slot_stride +
               head * size;
  const std::vector<int64_t>& tokens = call.of_state[state];
  static thread_local std::vector<float> memory;
  static thread_local std::vector<float*> places;
  int64_t num_copies = 0;
  auto moves_there = [&](int64_t token) {
    return call.is_last[token] && (call.origins[token] >= 0 || call.moves);
  };
  for (int64_t token : tokens) num_copies += !moves_there(token);
  if (int64_t(memory.size()) < num_copies * size) memory.resize(num_copies * size);
  if (int64_t(places.size()) < call.num_tokens) places.resize(call.num_tokens);
  float* next = memory.data();
  for (int64_t token : tokens) {
    float* from = call.origins[token] < 0 ? own : places[call.origins[token]];
    float* to = from;
    if (!moves_there(token)) {
      to = next;
      next += size;
    }
    places[token] = to;
    const int64_t number = layer * call.num_tokens + token;
    int64_t first = 0;
    for (; first + 4 * LANES <= call.value_dim; first += 4 * LANES)
      move_columns<4>(call, from, to, first, number, head, key_head);
    for (; first < call.value_dim; first += LANES)
      move_columns<1>(call, from, to, first, number, head, key_head);
  }
}
