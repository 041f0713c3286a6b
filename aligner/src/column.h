// Arrays of Python, read and written where they are.

#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <string_view>

namespace aligner {

namespace py = pybind11;

// The numbers of an array, which stays as long as this does.
template <typename Number>
class Column {
 public:
  explicit Column(const py::handle& array, bool is_written = false) {
    const int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (is_written ? PyBUF_WRITABLE : 0);
    // Not by `py::buffer::request`, which takes longer than all that is done with a few numbers.
    if (PyObject_GetBuffer(array.ptr(), &view_, flags)) throw py::error_already_set();
    if (view_.itemsize != sizeof(Number) || !view_.format || !is_format(view_.format)) {
      PyBuffer_Release(&view_);
      throw std::invalid_argument(std::string("a column is no array of ") + find_type());
    }
  }

  Column(const Column&) = delete;

  ~Column() { PyBuffer_Release(&view_); }

  int64_t size() const { return view_.len / int64_t(sizeof(Number)); }
  Number* begin() const { return static_cast<Number*>(view_.buf); }
  Number* end() const { return begin() + size(); }
  Number& operator[](int64_t index) const { return begin()[index]; }

  // The same, or an exception if it is out of range.
  Number& at(int64_t index) const {
    if (index < 0 || index >= size()) throw py::index_error("not in the column");
    return begin()[index];
  }

 private:
  static bool is_format(std::string_view format) {
    if constexpr (std::is_same_v<Number, bool>) return format == "?";
    if constexpr (std::is_same_v<Number, float>) return format == "f";
    return format == "i" || format == "l" || format == "q";
  }

  static const char* find_type() {
    if constexpr (std::is_same_v<Number, bool>) return "bool";
    if constexpr (std::is_same_v<Number, float>) return "float32";
    return sizeof(Number) == 4 ? "int32" : "int64";
  }

  Py_buffer view_;
};

}  // namespace aligner
