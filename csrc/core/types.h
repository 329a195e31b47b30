// Plain data that crosses the border between the torch-free core and its doors (torch, pybind11, ONNX Runtime).
// Nothing here has code that a compiler could specialise for an instruction set, so every translation unit may include it.
#pragma once

#include <cstdint>

namespace pairloom {

enum class DType { f32, f64, f16, bf16 };

// Larger is better in all of them: the Euclidean ones are negated distances.
enum class Similarity { cosine, dot, euclidean, squared_euclidean };
constexpr bool is_distance(Similarity s) { return s == Similarity::euclidean || s == Similarity::squared_euclidean; }

// A matrix of embeddings as its owner stores it: any strides (in elements), any dtype.
struct Matrix {
  const void* data;
  int64_t rows;
  int64_t dim;
  int64_t row_stride;
  int64_t column_stride;
  DType dtype;
  // What cosine multiplies each row with, as `inverse_norms` finds it, in the compute type; null: found again whenever a row is read.
  const void* inverse_norms = nullptr;
};

// How work is spread over threads. `run` calls task(context, begin, end) on disjoint ranges that cover [0, count) and returns
// when all are done. The core starts no thread of its own; the door that calls it lends its pool.
struct Parallel {
  using Task = void (*)(void* context, int64_t begin, int64_t end);
  void (*run)(int64_t count, Task task, void* context);
  int threads;
};

// Rows with a norm below this count as zero: similarity 0 to everything, gradient 0.
constexpr double kNormFloor = 1e-12;

// What a loss can say about the batch it saw; the order is the layout of the `stats` tensor.
enum Stat {
  kAnchors,
  kPositives,
  kNegatives,
  kMinedPositives,
  kMinedNegatives,
  kAnchorsWithoutPositive,
  kAnchorsWithoutNegative,
  kTop1Hits,
  kPositiveSimilaritySum,
  kNegativeSimilaritySum,
  kActiveAnchors,
  // Tiles of W, and those of them that hold a weight other than 0: what the products of the gradients skip. Their size is a matter of
  // the instruction set. Counted where a rule mines and a gradient is made, else both 0.
  kTiles,
  kLiveTiles,
  kStatCount,
};

enum class Reduction { mean, mean_nonzero, sum, none };

// One call of a pair loss, whatever its rule. Output pointers that are null are not wanted.
struct PairLossCall {
  Matrix rows;     // (N, D) anchors
  Matrix columns;  // (M, D) what they are compared with; unused when `self` is set
  bool self;       // rows against themselves: pair (i, i) is no pair, d_rows holds both roles
  Similarity similarity;
  Reduction reduction;
  const double* temperature;  // (N) when temperature_per_row, else one value; null = 1
  bool temperature_per_row;
  const double* weights;  // (N) or null = 1
  // (N) ids, or (N, label_words) multi-hot: 32 labels in a word, all words -1 for a row that is ignored; or null
  const int64_t* row_labels;
  const int64_t* column_labels;  // likewise (column_label_count), or null; columns beyond it are plain negatives
  int64_t label_words;           // 0 for ids
  int64_t column_label_count;
  bool has_ignore_index;
  int64_t ignore_index;
  bool target_is_row;           // column i is the positive of row i
  bool same_label_is_positive;  // otherwise a pair with equal labels is no pair
  void* row_loss;               // (N) in the compute type, always written
  void* d_rows;                 // (N, D) compute type or null
  void* d_columns;              // (M, D) compute type or null
  double* d_temperature;        // (N) when temperature_per_row, else one value, or null
  // Of losses that are sums of terms (triplets), whose means are over terms: how many of each row are above 0, and how many there are;
  // else null. And the gradient of the weights in the compute type, or null.
  int64_t* row_active;
  int64_t* row_terms;
  void* d_weights;
  double* stats;  // (kStatCount) or null
  double* loss;   // the reduced value
};

struct InfoNceCall {
  PairLossCall pairs;
};

// Rows against columns and columns against rows; N = M, column i is the positive of row i.
struct ClipCall {
  PairLossCall pairs;
};

struct MultiSimilarityCall {
  PairLossCall pairs;
  double alpha;
  double beta;
  double base;
  double epsilon;
  bool mining;
};

struct SupConCall {
  PairLossCall pairs;
  bool inside;
};

struct TripletMarginCall {
  PairLossCall pairs;
  double margin;
  bool smooth;
  bool has_lowest;
  bool has_highest;
  double lowest;
  double highest;
};

struct PairwiseCall {
  Matrix rows;
  Matrix columns;
  Similarity similarity;
  void* out;  // (N, M) compute type, contiguous
};

struct InverseNormsCall {
  Matrix rows;
  void* out;  // (rows) compute type
};

struct TopkCall {
  Matrix queries;
  Matrix gallery;
  Similarity similarity;
  int64_t k;
  void* scores;      // (Q, k) compute type
  int64_t* indices;  // (Q, k)
  // Gallery rows that are never returned, by query: exclude_indices[exclude_indptr[q] .. exclude_indptr[q + 1]), rising. Repeats and rows
  // outside the gallery do nothing. Null: none.
  const int64_t* exclude_indptr = nullptr;
  const int64_t* exclude_indices = nullptr;
};

// Mixtures of pairs of rows (engine/mix.h): row `first` of x with row `partner` of others.
struct MixCall {
  Matrix x;
  Matrix others;
  int64_t count;
  bool in_order;           // the mixtures are of rows 0, 1, ... of x, which are as many
  const int64_t* first;    // (count) rows of x, unless in_order; like all arrays here null where count is 0
  const int64_t* partner;  // (count) rows of others, or -1 for none
  const double* lambda;    // the share of x, (count) when lambda_per_row, else one value
  bool lambda_per_row;
  bool normalize;
  void* mixed;  // (count, dim) compute type; gradients do not need it
};

// The way back. Outputs that are null are not wanted.
struct MixGradientsCall {
  MixCall mix;
  Matrix d_mixed;  // (count, dim)
  bool one_batch;  // others are x, and d_x takes in both
  void* d_x;       // (x.rows, dim) compute type
  void* d_others;  // (others.rows, dim) compute type
  void* d_lambda;  // (count) compute type
};

// How the similarity s of a mixture to an anchor counts, with t = scale (s - offset): t, max(t, 0), log(1 + e^t) or e^t.
enum class MixtureTerm { linear, hinge, softplus, exponential };
struct MixtureHalf {
  MixtureTerm term;
  double scale;
  double offset;
};

// Sums over all mixtures of pairs of unit rows, none of which is formed (engine/mixtures.h). Columns are sorted by class.
struct MixturesCall {
  const void* s;      // (anchors, columns) similarities of the anchors with the columns
  const void* among;  // (among_rows, columns) similarities of columns [among_first, ...) with the columns
  int64_t anchors;
  int64_t columns;
  int64_t among_first;
  int64_t among_rows;
  const int64_t* begin;  // (anchors) columns [begin, end) have the anchor's class; anchors of one class follow each other
  const int64_t* end;
  const int64_t* own;            // (anchors) the column that is the anchor itself, or -1
  bool positives;                // mixtures of positives with negatives
  bool self;                     // mixtures of the anchor itself with negatives
  const void* lambda;            // the share of the first of a pair
  int64_t lambda_anchor_stride;  // 0: one for all
  bool lambda_by_pair;           // (among_rows, columns) or, with self alone, (anchors, columns)
  MixtureHalf positive;          // a mixture counts in it with lambda,
  MixtureHalf negative;          // and here with 1 - lambda
  void* sums;                    // (anchors, 2); of exponential terms the logarithm, -infinity for none
  const void* d_sums;            // (anchors, 2) or null: then no gradients
  void* d_s;                     // (anchors, columns), zeros at first
  void* d_among;                 // (among_rows, columns), zeros at first
};

// What is stored of a row beside its codes (engine/code_rows.h), each an array over all rows.
enum CodeRecord { kScale, kResidual, kNorm, kInverseNorm, kCodeSum, kCodeRecords };

// Rows in few bits: int8 or bfloat16.
struct CodedRows {
  const void* codes;     // (rows, stride), zeros behind the dim of the rows; null: rows are coded when they are met
  const float* records;  // (kCodeRecords, rows)
  int64_t stride;        // whole cache lines
  bool int8;             // otherwise bfloat16
};
constexpr int64_t kMostCodes = 65536;  // of a row, so that products fit int32

struct CodeRowsCall {
  Matrix rows;
  void* codes;
  float* records;
  int64_t stride;
  bool int8;
};

// In int8 rows alone; of `topk.gallery` only the sizes are used.
struct CodedTopkCall {
  TopkCall topk;
  CodedRows codes;
};

struct ScreenedTopkCall {
  TopkCall topk;
  CodedRows codes;    // of the gallery
  int64_t* rescored;  // (Q) how many rows were scored exactly
};

}  // namespace pairloom
