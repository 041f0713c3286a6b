// Kernels for the CPU: what a decoder layer computes, with attention over keys and values in
// blocks, the choice of tokens, lookups, and delta rules. What they compute is described at the functions of the
// same names in `core/attention/paged_attention.py`, `model/operations.py`,
// `core/acceptance/choice.py`, `core/lookup.py` and `core/recurrence/scan.py`; sums are in float32.
//
// Attention: a head of keys, a row and a tile of its tokens are one share of the work. Keys and
// values are packed into panels 64 at a time, from a multiple of 64 on, and what each query
// computes with them does not depend on the other queries: a token's result is the same to the last
// bit alone, in a longer chunk, and in any batch. So it is with products: weights lie in panels of
// 32 outputs, and each sum runs over the inputs in their order.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "crew.h"

// Vectors never cross a call between instruction sets.
#pragma GCC diagnostic ignored "-Wpsabi"
#define INLINE inline __attribute__((always_inline))

namespace {

#include "look_up.h"

constexpr int64_t MOST_QUERIES = 128;  // Of a tile, heads of a group counted.
constexpr int64_t MOST_DIM = 1024;     // Of a head that is normed.
constexpr int64_t PANEL = 32;          // Outputs side by side in the weights of a product.
constexpr int64_t SERIAL_SIZE = 32768;  // A shorter call is over before another thread is awake.

// Memory of one thread, in parts that begin at cache lines.
struct Scratch {
  std::vector<char> memory;
  char* next = nullptr;

  static int64_t fill_up(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  // Gives up what was taken, and makes room for parts of some sizes in bytes.
  template <class Sizes>
  void begin(const Sizes& sizes) {
    int64_t total = 64;
    for (int64_t size : sizes) total += fill_up(size);
    if (int64_t(memory.size()) < total) memory.resize(total);
    next = memory.data() + fill_up(reinterpret_cast<intptr_t>(memory.data())) -
           reinterpret_cast<intptr_t>(memory.data());
  }

  template <class Unit = void>
  Unit* take(int64_t size) {
    void* part = next;
    next += fill_up(size);
    return static_cast<Unit*>(part);
  }
};

struct Attention {
  const void* query;
  int64_t head_stride, token_stride;
  const void *keys, *values;
  void* output;
  const int64_t *query_starts, *num_computed, *tree_starts, *ancestors;
  const int32_t* block_tables;
  int64_t table_stride, block_size;
  int64_t num_rows, num_tokens, num_heads, num_kv_heads, key_dim, value_dim;
  int64_t window;
  const float* sinks;
  float scale, softcap;
  bool is_bfloat16;
};

struct Share {
  int64_t row, first_token, num_tokens, kv_head;
};

struct Norm {
  const void* inputs;
  const float* weight;
  void* output;
  int64_t num_rows, size;
  float epsilon;
  bool is_bfloat16;
};

struct Gate {
  const void* inputs;
  void* output;
  int64_t num_rows, size;
  bool is_gelu, is_bfloat16;
};

struct Rotation {
  const void *projected, *cosine, *sine;
  const float *query_weight, *key_weight;
  float query_epsilon, key_epsilon;
  void *queries, *keys, *values;
  const int64_t* slots;
  int64_t num_rows, num_queries, num_keys, dim;
  bool is_bfloat16;
};

// Two inputs of a product, where the CPU does not multiply pairs of bfloat16.
struct WidePair {
  float low, high;
};

struct Product {
  const void *inputs, *weights;
  const uint16_t *scales, *zeros;  // Of weights of 8 or 4 bits, for `group` inputs each.
  const float* totals;             // Of each row's groups of inputs.
  const float* bias;
  const void* residual;
  void* output;
  int64_t num_rows, depth, width, bits, group;
  bool is_bfloat16;
};

// A decoder layer; what its operations hand to each other is not set.
struct Layer {
  Norm before_attention, before_mlp;
  Product qkv, output, gate_up, down;
  Rotation rotation;
  Attention attention;
  Gate gate;
  const void* states;
  void* result;
  int64_t num_tokens;
};

struct Choice {
  const void* logits;
  int64_t* tokens;
  const int64_t* positions;
  const double *temperature, *top_p, *log_min_p;
  const int64_t *top_k, *seeds;
  const bool* samples;
  int64_t num_rows, vocab_size;
  bool is_bfloat16;
};

struct Scan {
  float* states;  // Of all slots.
  int64_t layer_stride, slot_stride;
  const int64_t *slots, *origins;
  const float *queries, *keys, *values, *decays, *rates;  // Of the tokens, layer by layer.
  float *recalled, *added;
  int64_t num_layers, num_states, num_tokens, num_heads, num_key_heads, key_dim, value_dim;
  bool moves;
  std::vector<std::vector<int64_t>> of_state;  // Tokens on the paths from each state, in order.
  std::vector<bool> is_last;  // Whether no token after it goes on from where it does.
};

// For float32 and for bfloat16. A call is done share by share, row by row, or panel by panel.
template <class Call, class Part>
using Kernel = void (*)(const Call&, Part);
struct Kernels {
  Kernel<Attention, const Share&> attend[2];
  Kernel<Norm, int64_t> norm[2];
  Kernel<Gate, int64_t> gate[2];
  Kernel<Rotation, int64_t> rotate[2];
  Kernel<Product, int64_t> multiply[2];
  Kernel<Product, int64_t> multiply_integers[2];  // Of 8 and of 4 bits.
  Kernel<Choice, int64_t> choose[2];
  Kernel<Scan, int64_t> scan;
  bool has_pairs;
};

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,avx2")
namespace avx512_bf16 {
#define LANES 16
#define HAS_PAIRS 1
#include "target.h"
#undef HAS_PAIRS
}  // namespace avx512_bf16
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,avx2")
namespace avx512 {
#define HAS_PAIRS 0
#include "target.h"
#undef LANES
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
#define LANES 8
#include "target.h"
}  // namespace avx2
#pragma GCC pop_options

struct Target {
  const char* name;
  const Kernels* kernels;
};
constexpr Target TARGETS[] = {{"avx512_bf16", &avx512_bf16::KERNELS},
                              {"avx512", &avx512::KERNELS},
                              {"avx2", &avx2::KERNELS}};
const Kernels* chosen = nullptr;

bool is_supported(const char* name) {
  __builtin_cpu_init();
  bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                    __builtin_cpu_supports("avx512dq");
  if (!strcmp(name, "avx2")) return has_avx2;
  if (!strcmp(name, "avx512")) return has_avx512;
  return has_avx512 && __builtin_cpu_supports("avx512bf16");
}

template <class Part>
void share_if(bool is_long, int64_t num_parts, const Part& part) {
  if (is_long) return crew->share(num_parts, part);
  for (int64_t number = 0; number < num_parts; ++number) part(number);
}

// Cuts the work so that all threads have some; a cut changes no result.
std::vector<Share> cut(const Attention& call, int64_t num_threads) {
  int64_t group = call.num_heads / call.num_kv_heads;
  int64_t num_tokens = call.query_starts[call.num_rows];
  int64_t fair = num_tokens * call.num_kv_heads / (4 * num_threads);
  int64_t tile = std::max(int64_t(1), std::min(MOST_QUERIES / group, std::max(fair, 8 / group)));
  std::vector<Share> shares;
  for (int64_t row = 0; row < call.num_rows; ++row) {
    int64_t start = call.query_starts[row], end = call.query_starts[row + 1];
    // The last tokens have the most keys.
    for (int64_t last = end; last > start; last -= std::min(tile, last - start)) {
      int64_t first = std::max(start, last - tile);
      for (int64_t head = 0; head < call.num_kv_heads; ++head)
        shares.push_back({row, first, last - first, head});
    }
  }
  return shares;
}

void attend(Attention& call) {
  std::vector<Share> shares = cut(call, Crew::num_threads());
  int64_t work = 0;
  for (const Share& share : shares)
    work += call.num_computed[share.row] + share.first_token - call.query_starts[share.row] + 1;
  int64_t num_shares = int64_t(shares.size());
  // A short pass is over before another thread has woken up.
  share_if(work > 512, num_shares,
           [&](int64_t i) { chosen->attend[call.is_bfloat16](call, shares[i]); });
  int64_t end = call.query_starts[call.num_rows];
  int64_t size = call.num_heads * call.value_dim * (call.is_bfloat16 ? 2 : 4);
  memset(static_cast<char*>(call.output) + end * size, 0, (call.num_tokens - end) * size);
}

template <class Call>
void by_row(const Call& call, Kernel<Call, int64_t> const (&kernels)[2], int64_t row_size) {
  share_if(call.num_rows * row_size > SERIAL_SIZE, call.num_rows,
           [&](int64_t row) { kernels[call.is_bfloat16](call, row); });
}

void rotate(const Rotation& call) {
  by_row(call, chosen->rotate, (call.num_queries + 2 * call.num_keys) * call.dim);
}

// Adds up each row's groups of inputs.
void add_up(Product& call) {
  const int64_t num_groups = call.depth / call.group;
  static thread_local Scratch scratch;
  const int64_t sizes[] = {call.num_rows * num_groups * 4};
  scratch.begin(sizes);
  float* totals = scratch.take<float>(sizes[0]);
  const uint16_t* inputs = static_cast<const uint16_t*>(call.inputs);
  share_if(call.num_rows * call.depth > SERIAL_SIZE, call.num_rows, [&](int64_t row) {
    for (int64_t i = row * num_groups; i < (row + 1) * num_groups; ++i) {
      totals[i] = 0.0f;
      for (int64_t j = i * call.group; j < (i + 1) * call.group; ++j) {
        uint32_t bits = uint32_t(inputs[j]) << 16;
        float number;
        memcpy(&number, &bits, 4);
        totals[i] += number;
      }
    }
  });
  call.totals = totals;
}

// Gives a call of bfloat16 its inputs in float32.
void widen(Product& call) {
  static thread_local Scratch scratch;
  const int64_t sizes[] = {call.num_rows * call.depth * 4};
  scratch.begin(sizes);
  uint32_t* wide = scratch.take<uint32_t>(sizes[0]);
  const uint16_t* inputs = static_cast<const uint16_t*>(call.inputs);
  share_if(call.num_rows * call.depth > 4 * SERIAL_SIZE, call.num_rows, [&](int64_t row) {
    for (int64_t i = row * call.depth; i < (row + 1) * call.depth; ++i)
      wide[i] = uint32_t(inputs[i]) << 16;
  });
  call.inputs = wide;
}

void multiply(Product& call) {
  int64_t num_panels = (call.width + PANEL - 1) / PANEL;
  if (call.bits == 4) add_up(call);
  if (call.is_bfloat16 && !chosen->has_pairs) widen(call);
  auto kernel = call.bits == 0 ? chosen->multiply[call.is_bfloat16]
                               : chosen->multiply_integers[call.bits == 4];
  share_if(call.depth * call.width > SERIAL_SIZE, num_panels,
           [&](int64_t panel) { kernel(call, panel); });
}

void choose(Choice& call) { by_row(call, chosen->choose, call.vocab_size); }

void scan(Scan& call) {
  call.of_state.resize(call.num_states);
  call.is_last.assign(call.num_tokens, true);
  std::vector<int64_t> state_of(call.num_tokens), last(call.num_states + call.num_tokens, -1);
  for (int64_t token = 0; token < call.num_tokens; ++token) {
    const int64_t origin = call.origins[token];
    state_of[token] = origin < 0 ? -1 - origin : state_of[origin];
    call.of_state[state_of[token]].push_back(token);
    int64_t& before = last[origin < 0 ? -1 - origin : call.num_states + origin];
    if (before >= 0) call.is_last[before] = false;
    before = token;
  }
  const int64_t num_parts = call.num_layers * call.num_states * call.num_heads;
  share_if(call.num_layers * call.num_tokens * call.num_heads * call.key_dim * call.value_dim >
               SERIAL_SIZE,
           num_parts, [&](int64_t part) { chosen->scan(call, part); });
}

void run(Layer& layer) {
  const int64_t tokens = layer.num_tokens, hidden = layer.qkv.depth, gated = layer.down.depth;
  const int64_t attended = layer.output.depth, element = layer.qkv.is_bfloat16 ? 2 : 4;
  // What is not needed any more makes room for what comes later.
  int64_t sizes[] = {hidden, std::max(layer.qkv.width, 2 * gated), std::max(attended, gated),
                     attended, hidden};
  for (int64_t& size : sizes) size *= tokens * element;
  static thread_local Scratch scratch;
  scratch.begin(sizes);
  void *normed = scratch.take(sizes[0]), *projected = scratch.take(sizes[1]);
  void *queries = scratch.take(sizes[2]), *attention = scratch.take(sizes[3]);
  void* sum = scratch.take(sizes[4]);
  void *both = projected, *product = queries;
  auto norm = [&](Norm& call, const void* inputs) {
    call.inputs = inputs;
    call.output = normed;
    call.num_rows = tokens;
    by_row(call, chosen->norm, call.size);
  };
  auto multiply_by = [&](Product& call, const void* inputs, const void* residual, void* output) {
    call.inputs = inputs;
    call.residual = residual;
    call.output = output;
    call.num_rows = tokens;
    multiply(call);
  };
  const bool is_normed = layer.before_attention.weight != nullptr;
  if (is_normed) norm(layer.before_attention, layer.states);
  multiply_by(layer.qkv, is_normed ? normed : layer.states, nullptr, projected);
  layer.rotation.projected = projected;
  layer.rotation.queries = queries;
  layer.rotation.num_rows = tokens;
  rotate(layer.rotation);
  layer.attention.query = queries;
  layer.attention.output = attention;
  attend(layer.attention);
  multiply_by(layer.output, attention, layer.states, sum);
  norm(layer.before_mlp, sum);
  multiply_by(layer.gate_up, normed, nullptr, both);
  layer.gate.inputs = both;
  layer.gate.output = product;
  layer.gate.num_rows = tokens;
  by_row(layer.gate, chosen->gate, 4 * gated);
  multiply_by(layer.down, product, sum, layer.result);
}

template <class Pointer>
bool take(PyObject* object, Pointer*& to) {
  to = static_cast<Pointer*>(PyLong_AsVoidPtr(object));
  return to != nullptr || !PyErr_Occurred();
}

bool take(PyObject* object, int64_t& to) {
  to = PyLong_AsLongLong(object);
  return to != -1 || !PyErr_Occurred();
}

bool take(PyObject* object, bool& to) {
  to = object == Py_True;
  return true;
}

bool take(PyObject* object, float& to) {
  to = float(PyFloat_AsDouble(object));
  return !PyErr_Occurred();
}

template <class... Fields>
bool take_all(PyObject* const* arguments, Py_ssize_t num_arguments, Fields&... fields) {
  if (num_arguments != Py_ssize_t(sizeof...(fields))) {
    PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
    return false;
  }
  return (take(*arguments++, fields) && ...);
}

bool check(bool has_fitting_sizes) {
  if (chosen != nullptr && has_fitting_sizes) return true;
  PyErr_SetString(PyExc_ValueError, "no instruction set is chosen, or a head is too large");
  return false;
}

// Runs a call while other Python threads run.
template <class Call>
PyObject* release(Call& call, void (*run)(Call&)) {
  Py_BEGIN_ALLOW_THREADS;
  run(call);
  Py_END_ALLOW_THREADS;
  Py_RETURN_NONE;
}

PyObject* attend(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Attention call = {};
  if (!take_all(arguments, num_arguments, call.query, call.head_stride, call.token_stride,
                call.keys, call.values, call.output, call.query_starts, call.num_computed,
                call.tree_starts, call.ancestors, call.block_tables, call.table_stride,
                call.block_size, call.num_rows, call.num_tokens, call.num_heads,
                call.num_kv_heads, call.key_dim, call.value_dim, call.window, call.sinks,
                call.scale, call.softcap, call.is_bfloat16))
    return nullptr;
  if (!check(call.num_kv_heads > 0 && call.num_heads / call.num_kv_heads <= MOST_QUERIES))
    return nullptr;
  return release(call, attend);
}

PyObject* norm(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Norm call = {};
  if (!take_all(arguments, num_arguments, call.inputs, call.weight, call.output, call.num_rows,
                call.size, call.epsilon, call.is_bfloat16) ||
      !check(true))
    return nullptr;
  by_row(call, chosen->norm, call.size);
  Py_RETURN_NONE;
}

PyObject* gate(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Gate call = {};
  if (!take_all(arguments, num_arguments, call.inputs, call.output, call.num_rows, call.size,
                call.is_gelu, call.is_bfloat16) ||
      !check(true))
    return nullptr;
  by_row(call, chosen->gate, 4 * call.size);
  Py_RETURN_NONE;
}

PyObject* rotate(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Rotation call = {};
  if (!take_all(arguments, num_arguments, call.projected, call.cosine, call.sine,
                call.query_weight, call.key_weight, call.query_epsilon, call.key_epsilon,
                call.queries, call.keys, call.values, call.slots, call.num_rows, call.num_queries,
                call.num_keys, call.dim, call.is_bfloat16) ||
      !check(call.dim <= MOST_DIM))
    return nullptr;
  rotate(call);
  Py_RETURN_NONE;
}

PyObject* multiply(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Product call = {};
  if (!take_all(arguments, num_arguments, call.weights, call.scales, call.zeros, call.bias,
                call.depth, call.width, call.bits, call.group, call.inputs, call.residual,
                call.output, call.num_rows, call.is_bfloat16) ||
      !check(true))
    return nullptr;
  return release(call, multiply);
}

PyObject* choose(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Choice call = {};
  if (!take_all(arguments, num_arguments, call.logits, call.tokens, call.positions,
                call.temperature, call.top_p, call.log_min_p, call.top_k, call.seeds, call.samples,
                call.num_rows, call.vocab_size, call.is_bfloat16) ||
      !check(true))
    return nullptr;
  return release(call, choose);
}

PyObject* scan(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Scan call = {};
  if (!take_all(arguments, num_arguments, call.states, call.layer_stride, call.slot_stride,
                call.slots, call.origins, call.queries, call.keys, call.values, call.decays,
                call.rates, call.recalled, call.added, call.num_layers, call.num_states,
                call.num_tokens, call.num_heads, call.num_key_heads, call.key_dim, call.value_dim,
                call.moves) ||
      !check(call.num_key_heads > 0))
    return nullptr;
  return release(call, scan);
}

PyObject* look_up(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  LookUp call = {};
  if (!take_all(arguments, num_arguments, call.texts, call.text_stride, call.predicted,
                call.predicted_stride, call.slots, call.lengths, call.num_prompt_tokens,
                call.limits, call.cursors, call.predicted_cursors, call.predicted_lengths,
                call.num_matched, call.num_tokens, call.positions, call.tokens,
                call.num_rows, call.width, call.longest, call.reach, call.matched_at_start,
                call.no_cursor))
    return nullptr;
  return release(call, look_up);
}

// Takes what is a layer's own: weights and options, then its part of the KV memory.
bool take_layer(PyObject* own, PyObject* memory, Layer& call) {
  Attention& attention = call.attention;
  Rotation& rotation = call.rotation;
  bool is_bfloat16;
  if (!PyTuple_Check(own) || !PyTuple_Check(memory)) {
    PyErr_SetString(PyExc_TypeError, "a layer's arguments are not tuples");
    return false;
  }
  if (!take_all(&PyTuple_GET_ITEM(own, 0), PyTuple_GET_SIZE(own),
                call.before_attention.weight,
                call.before_attention.epsilon, call.before_mlp.weight, call.before_mlp.epsilon,
                call.qkv.weights, call.qkv.scales, call.qkv.zeros, call.qkv.bias,
                call.qkv.depth, call.qkv.width, call.qkv.bits, call.qkv.group,
                call.output.weights, call.output.scales, call.output.zeros, call.output.bias,
                call.output.depth, call.output.width, call.output.bits, call.output.group,
                call.gate_up.weights, call.gate_up.scales, call.gate_up.zeros, call.gate_up.bias,
                call.gate_up.depth, call.gate_up.width, call.gate_up.bits, call.gate_up.group,
                call.down.weights, call.down.scales, call.down.zeros, call.down.bias,
                call.down.depth, call.down.width, call.down.bits, call.down.group,
                rotation.query_weight, rotation.query_epsilon, rotation.key_weight,
                rotation.key_epsilon, rotation.num_queries, rotation.num_keys, rotation.dim,
                attention.window, attention.scale, attention.softcap, call.gate.is_gelu,
                is_bfloat16) ||
      !take_all(&PyTuple_GET_ITEM(memory, 0), PyTuple_GET_SIZE(memory), rotation.keys,
                rotation.values) ||
      !check(rotation.dim <= MOST_DIM && rotation.num_keys > 0 &&
             rotation.num_queries / rotation.num_keys <= MOST_QUERIES))
    return false;
  for (Norm* norm : {&call.before_attention, &call.before_mlp}) {
    norm->size = call.qkv.depth;
    norm->is_bfloat16 = is_bfloat16;
  }
  for (Product* product : {&call.qkv, &call.output, &call.gate_up, &call.down})
    product->is_bfloat16 = is_bfloat16;
  rotation.is_bfloat16 = attention.is_bfloat16 = call.gate.is_bfloat16 = is_bfloat16;
  call.gate.size = call.down.depth;
  attention.head_stride = attention.key_dim = attention.value_dim = rotation.dim;
  attention.token_stride = rotation.num_queries * rotation.dim;
  attention.keys = rotation.keys;
  attention.values = rotation.values;
  attention.num_tokens = call.num_tokens;
  attention.num_heads = rotation.num_queries;
  attention.num_kv_heads = rotation.num_keys;
  return true;
}

void run(std::vector<Layer>& layers) {
  for (Layer& layer : layers) run(layer);
}

PyObject* layers(PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
  Layer shared = {};
  Attention& attention = shared.attention;
  Rotation& rotation = shared.rotation;
  if (num_arguments < 2 || !PyList_Check(arguments[0]) || !PyList_Check(arguments[1]) ||
      PyList_GET_SIZE(arguments[0]) != PyList_GET_SIZE(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "layers and their memory are not lists of one length");
    return nullptr;
  }
  if (!take_all(arguments + 2, num_arguments - 2, shared.states, shared.result, shared.num_tokens,
                rotation.cosine, rotation.sine, rotation.slots, attention.query_starts,
                attention.num_computed, attention.tree_starts, attention.ancestors,
                attention.block_tables, attention.table_stride, attention.block_size,
                attention.num_rows))
    return nullptr;
  std::vector<Layer> calls(size_t(PyList_GET_SIZE(arguments[0])), shared);
  for (size_t number = 0; number < calls.size(); ++number) {
    Layer& call = calls[number];
    if (!take_layer(PyList_GET_ITEM(arguments[0], number), PyList_GET_ITEM(arguments[1], number),
                    call))
      return nullptr;
    // A layer reads its states before it writes its result.
    if (number > 0) call.states = shared.result;
  }
  return release(calls, run);
}

PyObject* use(PyObject*, PyObject* name) {
  const char* wanted = PyUnicode_AsUTF8(name);
  if (wanted == nullptr) return nullptr;
  for (const Target& target : TARGETS)
    if (!strcmp(target.name, wanted) && is_supported(target.name)) {
      chosen = target.kernels;
      Py_RETURN_TRUE;
    }
  Py_RETURN_FALSE;
}

using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyMethodDef method(const char* name, Fast function, const char* about) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)),
          METH_FASTCALL, about};
}

// Arguments are addresses and sizes, in the order in which each function takes them.
PyMethodDef METHODS[] = {
    method("attend", attend, "Attends."),
    method("norm", norm, "Norms rows."),
    method("gate", gate, "Multiplies activated halves of rows by their other halves."),
    method("rotate", rotate, "Rotates queries and keys, and writes keys and values."),
    method("multiply", multiply, "Multiplies rows by weights."),
    method("choose", choose, "Chooses tokens."),
    method("scan", scan, "Moves matrices over tokens."),
    method("look_up", look_up, "Finds where texts go on."),
    method("layers", layers, "Computes decoder layers, one after the other."),
    {"use", use, METH_O, "Chooses an instruction set by name; returns whether the CPU has it."},
    {nullptr, nullptr, 0, nullptr}};
PyModuleDef MODULE = {PyModuleDef_HEAD_INIT, "compiled", nullptr, -1, METHODS,
                      nullptr,               nullptr,   nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_compiled() { return PyModule_Create(&MODULE); }
