#include "python/scoring.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>

#include "core/arguments.h"
#include "cpu/kernels.h"
#include "python/threads.h"

namespace py = pybind11;

namespace pairloom {
namespace {

using Integers = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::string shape_of(const py::array& array) {
  std::string text = "(";
  for (py::ssize_t i = 0; i < array.ndim(); ++i) text += (i > 0 ? ", " : "") + std::to_string(array.shape(i));
  return text + ")";
}

DType dtype_of(const py::array& array, const char* name) {
  const py::dtype dtype = array.dtype();
  constexpr char kOwnOrder = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>';  // or '=' for the same
  const bool native = dtype.byteorder() == '=' || dtype.byteorder() == kOwnOrder;
  if (dtype.kind() == 'f' && native) {
    if (dtype.itemsize() == 4) return DType::f32;
    if (dtype.itemsize() == 8) return DType::f64;
    if (dtype.itemsize() == 2) return DType::f16;
  }
  if (dtype.kind() == 'u' && dtype.itemsize() == 2 && native) return DType::bf16;  // NumPy has only the bits
  throw py::type_error(std::string(name) + " has dtype " + py::str(dtype).cast<std::string>() +
                       "; allowed are float32, float64 and float16 in this machine's byte order");
}

// The array as it lies, with any strides.
Matrix matrix_of(const py::array& array, const char* name) {
  const DType dtype = dtype_of(array, name);
  if (array.ndim() != 2 || array.shape(1) < 1) {
    throw InputError(std::string(name) + " has shape " + shape_of(array) + "; it must be (rows, dimensions), with at least one dimension");
  }
  const py::ssize_t item = array.itemsize();
  if (array.strides(0) % item != 0 || array.strides(1) % item != 0 ||
      reinterpret_cast<uintptr_t>(array.data()) % static_cast<uintptr_t>(item) != 0) {
    throw InputError(std::string(name) + " is not aligned to its numbers; pass a copy");
  }
  return {array.data(), array.shape(0), array.shape(1), array.strides(0) / item, array.strides(1) / item, dtype};
}

py::array empty(std::vector<py::ssize_t> shape, bool wide) {
  if (wide) return py::array_t<double>(shape);
  return py::array_t<float>(shape);
}

bool is_wide(const Matrix& a, const Matrix& b) { return a.dtype == DType::f64 || b.dtype == DType::f64; }

// An array that a kernel reads as it lies.
const void* dense(const py::array& array, const char* name, char kind, py::ssize_t item, std::vector<int64_t> shape) {
  bool fits = array.dtype().kind() == kind && array.itemsize() == item && array.ndim() == static_cast<py::ssize_t>(shape.size()) &&
              (array.flags() & py::array::c_style) != 0;
  std::string wanted = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    fits = fits && array.shape(static_cast<py::ssize_t>(i)) == shape[i];
    wanted += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  if (fits) return array.data();
  throw InputError(std::string(name) + " has shape " + shape_of(array) + " and dtype " + py::str(array.dtype()).cast<std::string>() +
                   "; it must be contiguous " + wanted + ") as code_rows makes it");
}

// A call and what it points into.
class Search {
 public:
  Search(const Matrix& queries, const Matrix& gallery, int64_t k, const std::string& similarity, const std::optional<Integers>& indptr,
         const std::optional<Integers>& indices, bool wide)
      : call{.queries = queries,
             .gallery = gallery,
             .similarity = parse_similarity(similarity),
             .k = k,
             .scores = nullptr,
             .indices = nullptr} {
    if (k < 0) throw InputError("k is " + std::to_string(k) + "; it must be 0 or more");
    if (gallery.dim != queries.dim) {
      throw InputError("gallery has " + std::to_string(gallery.dim) + " dimensions per row and queries has " + std::to_string(queries.dim) +
                       "; they must be equal");
    }
    if (indptr.has_value() != indices.has_value())
      throw InputError("exclude_indptr and exclude_indices belong together: pass both, or neither");
    if (indptr.has_value()) {
      exclusions_ = Exclusions(indptr->data(), indptr->size(), indices->data(), indices->size(), queries.rows);
      call.exclude_indptr = exclusions_.indptr();
      call.exclude_indices = exclusions_.indices();
    }
    scores = empty({queries.rows, k}, wide);
    ids = py::array_t<int64_t>({queries.rows, k});
    call.scores = scores.mutable_data();
    call.indices = static_cast<int64_t*>(ids.mutable_data());
  }

  TopkCall call;
  py::array scores, ids;

 private:
  Exclusions exclusions_;
};

template <class Call>
void run(const Kernel<Call>& kernel, bool wide, const Call& call, int threads) {
  const py::gil_scoped_release release;
  const Threads lent(threads);
  (wide ? kernel.f64 : kernel.f32)(call, lent.parallel());
}

py::tuple topk(const py::array& queries, const py::array& gallery, int64_t k, const std::string& similarity, std::optional<Integers> indptr,
               std::optional<Integers> indices, std::optional<py::array> inverse_norms, int threads) {
  const Matrix a = matrix_of(queries, "queries");
  Matrix b = matrix_of(gallery, "gallery");
  const bool wide = is_wide(a, b);
  if (inverse_norms.has_value()) b.inverse_norms = dense(*inverse_norms, "inverse_norms", 'f', wide ? 8 : 4, {b.rows});
  const Search search(a, b, k, similarity, indptr, indices, wide);
  run(kernels().topk, wide, search.call, threads);
  return py::make_tuple(search.scores, search.ids);
}

py::array inverse_norms(const py::array& rows, bool wide, int threads) {
  const Matrix matrix = matrix_of(rows, "rows");
  py::array out = empty({matrix.rows}, wide || matrix.dtype == DType::f64);
  run(kernels().inverse_norms, wide || matrix.dtype == DType::f64, InverseNormsCall{matrix, out.mutable_data()}, threads);
  return out;
}

py::tuple code_rows(const py::array& rows, const std::string& format, int threads) {
  if (format != "int8" && format != "bf16") throw InputError("format is '" + format + "'; allowed are 'int8' and 'bf16'");
  CodeRowsCall call{.rows = matrix_of(rows, "rows"), .codes = nullptr, .records = nullptr, .stride = 0, .int8 = format == "int8"};
  if (call.rows.dim > kMostCodes) {
    throw InputError("rows have " + std::to_string(call.rows.dim) + " dimensions; codes take at most " + std::to_string(kMostCodes));
  }
  call.stride = code_stride(call.rows.dim, call.int8);
  py::array codes = call.int8 ? py::array(py::array_t<int8_t>({call.rows.rows, call.stride}))
                              : py::array(py::array_t<int16_t>({call.rows.rows, call.stride}));
  py::array_t<float> records({int64_t{kCodeRecords}, call.rows.rows});
  call.codes = codes.mutable_data();
  call.records = records.mutable_data();
  run(kernels().code_rows, call.rows.dtype == DType::f64, call, threads);
  return py::make_tuple(codes, records);
}

CodedRows coded(const py::array& codes, const py::array& records, int64_t rows, int64_t dim) {
  const bool int8 = codes.itemsize() == 1;
  const int64_t stride = code_stride(dim, int8);
  if (dim > kMostCodes)
    throw InputError("rows have " + std::to_string(dim) + " dimensions; codes take at most " + std::to_string(kMostCodes));
  return {.codes = dense(codes, "codes", 'i', int8 ? 1 : 2, {rows, stride}),
          .records = static_cast<const float*>(dense(records, "records", 'f', 4, {kCodeRecords, rows})),
          .stride = stride,
          .int8 = int8};
}

py::tuple screened_topk(const py::array& queries, const py::array& gallery, const py::array& codes, const py::array& records, int64_t k,
                        const std::string& similarity, std::optional<Integers> indptr, std::optional<Integers> indices, int threads) {
  const Matrix a = matrix_of(queries, "queries"), b = matrix_of(gallery, "gallery");
  const bool wide = is_wide(a, b);
  const Search search(a, b, k, similarity, indptr, indices, wide);
  py::array_t<int64_t> rescored(a.rows);
  const ScreenedTopkCall call{.topk = search.call, .codes = coded(codes, records, b.rows, b.dim), .rescored = rescored.mutable_data()};
  run(kernels().screened_topk, wide, call, threads);
  return py::make_tuple(search.scores, search.ids, rescored);
}

py::tuple coded_topk(const py::array& queries, const py::array& codes, const py::array& records, int64_t k, const std::string& similarity,
                     std::optional<Integers> indptr, std::optional<Integers> indices, int threads) {
  const Matrix a = matrix_of(queries, "queries");
  if (a.dtype == DType::f64) throw py::type_error("queries has dtype float64; int8 galleries take float32 and float16");
  if (codes.ndim() != 2 || codes.itemsize() != 1)
    throw InputError("codes has shape " + shape_of(codes) + "; it must be int8 (rows, codes)");
  Matrix sizes = a;  // of the gallery only the sizes are used
  sizes.rows = codes.shape(0);
  const Search search(a, sizes, k, similarity, indptr, indices, false);
  if (is_distance(search.call.similarity)) throw InputError("similarity is '" + similarity + "'; int8 galleries have 'cosine' and 'dot'");
  const CodedTopkCall call{.topk = search.call, .codes = coded(codes, records, sizes.rows, a.dim)};
  {
    const py::gil_scoped_release release;
    const Threads lent(threads);
    kernels().coded_topk(call, lent.parallel());
  }
  return py::make_tuple(search.scores, search.ids);
}

}  // namespace

void define_scoring(py::module_& m) {
  py::register_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const InputError& bad) {
      PyErr_SetString(PyExc_ValueError, bad.what());
    }
  });
  const auto none = py::none();
  m.def("topk", &topk, py::arg("queries"), py::arg("gallery"), py::arg("k"), py::arg("similarity"), py::arg("exclude_indptr") = none,
        py::arg("exclude_indices") = none, py::arg("inverse_norms") = none, py::arg("threads") = 1,
        "As torch.ops.pairloom.topk, of arrays.");
  m.def("inverse_norms", &inverse_norms, py::arg("rows"), py::arg("wide") = false, py::arg("threads") = 1,
        "What cosine multiplies each row with; in float64 when wide.");
  m.def("code_rows", &code_rows, py::arg("rows"), py::arg("format"), py::arg("threads") = 1,
        "As torch.ops.pairloom.code_rows, of arrays; bfloat16 as int16.");
  m.def("screened_topk", &screened_topk, py::arg("queries"), py::arg("gallery"), py::arg("codes"), py::arg("records"), py::arg("k"),
        py::arg("similarity"), py::arg("exclude_indptr") = none, py::arg("exclude_indices") = none, py::arg("threads") = 1,
        "As torch.ops.pairloom.screened_topk, of arrays.");
  m.def("coded_topk", &coded_topk, py::arg("queries"), py::arg("codes"), py::arg("records"), py::arg("k"), py::arg("similarity"),
        py::arg("exclude_indptr") = none, py::arg("exclude_indices") = none, py::arg("threads") = 1,
        "As torch.ops.pairloom.coded_topk, of arrays.");
}

}  // namespace pairloom
