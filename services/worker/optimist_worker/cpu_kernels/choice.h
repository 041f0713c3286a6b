// The token of a row of logits: the largest score plus noise among those that the cuts leave. A
// score is a logit by the temperature.

INLINE uint32_t mask_of(Ints is_set) {
#if LANES == 16
  return _mm512_movepi32_mask((__m512i)is_set);
#else
  return uint32_t(_mm256_movemask_ps((__m256)is_set));
#endif
}

// High and low halves of products of unsigned numbers.
INLINE void multiply_wide(Ints a, uint32_t b, Ints& high, Ints& low) {
#if LANES == 16
  __m512i factor = _mm512_set1_epi64(b);
  __m512i even = _mm512_mul_epu32((__m512i)a, factor);
  __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64((__m512i)a, 32), factor);
  low = (Ints)_mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  high = (Ints)_mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
#else
  __m256i factor = _mm256_set1_epi64x(b);
  __m256i even = _mm256_mul_epu32((__m256i)a, factor);
  __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64((__m256i)a, 32), factor);
  low = (Ints)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = (Ints)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
#endif
}

// Four words of noise for each lane's counter, `first + lane`; see `core/acceptance/noise.py`.
INLINE void draw(int64_t first, uint32_t position, uint64_t seed, Ints (&words)[4]) {
  for (int lane = 0; lane < LANES; ++lane) words[0][lane] = int32_t(first) + lane;
  words[1] = Ints{} + int32_t(position);
  words[2] = words[3] = Ints{};
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
#pragma GCC unroll 7
  for (int round = 0; round < 7; ++round) {
    Ints high0, low0, high2, low2;
    multiply_wide(words[0], 0xd2511f53u, high0, low0);
    multiply_wide(words[2], 0xcd9e8d57u, high2, low2);
    words[0] = high2 ^ words[1] ^ int32_t(key0);
    words[2] = high0 ^ words[3] ^ int32_t(key1);
    words[1] = low2;
    words[3] = low0;
    key0 += 0x9e3779b9u;
    key1 += 0xbb67ae85u;
  }
}

INLINE double gumbel(int32_t word) {
  return -std::log(-std::log((double(uint32_t(word)) + 0.5) * 0x1p-32));
}

struct Candidate {
  float logit, weight;
};

// Returns the least logit before which, from the largest down, weights of less than `most` come.
inline float least_kept(Candidate* first, Candidate* last, double most) {
  double before = 0.0;
  float least = first->logit;
  while (first < last) {
    float middle = first[(last - first) / 2].logit;
    float ends[] = {first->logit, last[-1].logit};
    float pivot = std::max(std::min(ends[0], ends[1]),
                           std::min(std::max(ends[0], ends[1]), middle));
    auto weigh = [&](Candidate* from, Candidate* to) {
      double sum = 0.0;
      for (; from < to; ++from) sum += from->weight;
      return sum;
    };
    Candidate* above = std::partition(first, last, [=](const Candidate& each) {
      return each.logit > pivot;
    });
    double sum = weigh(first, above);
    if (before + sum >= most) {
      last = above;
      continue;
    }
    least = pivot;
    first = std::partition(above, last, [=](const Candidate& each) {
      return each.logit == pivot;
    });
    before += sum + weigh(above, first);
    if (before >= most) break;
  }
  return least;
}

template <class Format>
struct Row {
  const typename Format::Element* logits;
  int64_t size;
  float most;    // Logit.
  float factor;  // Of logits, for scores in units of log 2.

  INLINE Floats read_logits(int64_t from) const { return read<Format>(logits + from, size - from); }

  INLINE Ints are_real(int64_t from) const {
    Ints lanes;
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane;
    return lanes < int32_t(std::min(size - from, int64_t(LANES)));
  }

  // Returns the tokens with a logit of at least `floor`, and the weights of all that have one of at
  // least `least`.
  double find(float floor, float least, std::vector<Candidate>& found) const {
    found.clear();
    double total = 0.0;
    for (int64_t start = 0; start < size; start += 4096) {
      Floats sum = {};
      for (int64_t i = start; i < std::min(size, start + 4096); i += LANES) {
        Floats logits = read_logits(i);
        Ints is_real = are_real(i) & (logits >= least);
        Floats weights = exp2((logits - most) * factor);
        sum += is_real ? weights : Floats{};
        for (uint32_t bits = mask_of(is_real & (logits >= floor)); bits; bits &= bits - 1) {
          int lane = __builtin_ctz(bits);
          found.push_back({logits[lane], weights[lane]});
        }
      }
      total += sum_of(sum);
    }
    return total;
  }

  // Returns the least logit that top-k and top-p leave.
  float cut(int64_t top_k, double top_p) const {
    static thread_local std::vector<Candidate> found;
    const float lowest = -std::numeric_limits<float>::infinity();
    float least = lowest;
    // Few tokens mostly have all of top-p, and are more than top-k.
    for (float distance : {16.0f, 48.0f, -lowest}) {
      float floor = std::max(most - distance / factor, least);
      if (top_k < size && least == lowest) {
        find(floor, lowest, found);
        if (int64_t(found.size()) < top_k && floor > lowest) continue;
        for (Candidate& each : found) each.weight = 1.0f;
        least = least_kept(found.data(), found.data() + found.size(), double(top_k));
        floor = std::max(floor, least);
      }
      if (std::isinf(top_p)) return least;
      double total = find(floor, least, found), sum = 0.0;
      for (const Candidate& each : found) sum += each.weight;
      if (sum >= top_p * total || floor <= least)
        return least_kept(found.data(), found.data() + found.size(), top_p * total);
    }
    return least;
  }
};

template <class Format>
void choose(const Choice& call, int64_t number) {
  Row<Format> row = {};
  row.size = call.vocab_size;
  row.logits = static_cast<const typename Format::Element*>(call.logits) + number * row.size;
  Floats largest_logits = fill(-std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < row.size; i += LANES)
    largest_logits = largest(row.are_real(i) ? row.read_logits(i) : largest_logits, largest_logits);
  row.most = largest_of(largest_logits);
  int64_t token = 0;
  for (int64_t i = 0; i < row.size; i += LANES)
    if (uint32_t bits = mask_of(row.are_real(i) & (row.read_logits(i) == row.most))) {
      token = i + __builtin_ctz(bits);
      break;
    }
  call.tokens[number] = token;
  if (!call.samples[number] || !std::isfinite(row.most)) return;
  const double temperature = call.temperature[number], most = row.most / temperature;
  row.factor = float(LOG2_E / temperature);
  double floor = most + call.log_min_p[number];
  if (call.top_k[number] < row.size || !std::isinf(call.top_p[number]))
    floor = std::max(floor, row.cut(call.top_k[number], call.top_p[number]) / temperature);
  const int64_t num_blocks = (row.size + 3) / 4;
  const uint32_t position = uint32_t(call.positions[number]);
  const uint64_t seed = uint64_t(call.seeds[number]);
  Ints words[4];
  draw(token % num_blocks, position, seed, words);
  double best = most + gumbel(words[token / num_blocks][0]);
  for (int64_t first = 0; first < num_blocks; first += LANES) {
    draw(first, position, seed, words);
    for (int word = 0; word < 4; ++word) {
      int64_t start = word * num_blocks + first;
      int64_t end = std::min((word + 1) * num_blocks, row.size);
      if (start >= end) continue;
      // Noise of u exceeds d only if 1 - u < exp(-d). What is left of 1 - u here is no more than it.
      Floats logits = row.read_logits(start);
      Floats distance = (logits - row.most) * row.factor + float((most - best) * LOG2_E);
      distance = distance > 1.0f ? fill(1.0f) : distance;
      Ints rest = (~words[word] >> 8) & 0xffffff;
      Ints may_win = __builtin_convertvector(rest, Floats) * 0x1p-24f < exp2(distance) * 1.001f;
      uint32_t bits = mask_of(may_win);
      if (end - start < LANES) bits &= (1u << (end - start)) - 1;
      for (; bits; bits &= bits - 1) {
        int lane = __builtin_ctz(bits);
        double score = logits[lane] / temperature;
        if (score < floor) continue;
        double value = score + gumbel(words[word][lane]);
        if (value > best || (value == best && start + lane < token)) {
          best = value;
          token = start + lane;
        }
      }
    }
  }
  call.tokens[number] = token;
}
