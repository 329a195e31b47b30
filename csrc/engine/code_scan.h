// The loops of a search in coded rows (engine/code_products.h), which are coded on the way where no codes are given: queries are coded in
// panels, blocks of the gallery are multiplied with groups of panels while both are in cache, and what becomes of the products is said by
// the class that derives from this one:
//
//   prepare(q, coded, panel, lane)            query q of the chunk is loaded and coded; -1: the lane has none
//   numbers_of_rows(records, count, RowNumbers&)   what it needs of `count` gallery rows, at most kBlockRows
//   Thread(search, first panel, last panel)   what a thread has of its own while it scans
//   take(block, first, count, i, panel, thread, part)   the products of `count` rows from `first` on with a panel, the block's i-th
//   finish(begin, end)                        the answers of queries [begin, end) of the chunk
#pragma once

#include "core/parallel.h"
#include "engine/code_products.h"
#include "engine/similarity.h"
#include "engine/topk.h"

namespace pairloom::PAIRLOOM_ISA {

constexpr int64_t kBlockRows = 4 * kCodeRows;  // of a gallery, together

template <class T, class Products, class Search>
class CodeScan {
 protected:
  using Packing = typename Products::Packing;
  using Code = typename Products::Code;
  using Stored = typename Packing::Stored;

  static constexpr int64_t kGroupPanels = 4;  // of queries, together
  static constexpr int64_t kGroup = kGroupPanels * kPanelQueries;

  // `item_bytes`: what each part of the gallery keeps for a query.
  CodeScan(const TopkCall& topk, const CodedRows& gallery, int64_t rows, int64_t item_bytes, const Parallel& pool)
      : topk_(topk),
        gallery_(gallery),
        pool_(pool),
        m_(rows),
        k_(std::min(topk.k, rows)),
        depth_(gallery.stride),
        stride_(padded_stride<T>(topk.queries.dim)),
        blocks_((m_ + kBlockRows - 1) / kBlockRows),
        parts_(gallery.codes == nullptr || topk.queries.rows < 2 * kGroup * pool.threads ? std::clamp<int64_t>(blocks_ / 4, 1, pool.threads)
                                                                                         : 1),
        chunk_(queries_per_chunk(item_bytes)),
        queries_(chunk_ * stride_),
        panels_(in_panels(chunk_) * panel_size()) {}

  void search_all() {
    Search& search = *static_cast<Search*>(this);
    for (first_query_ = 0; first_query_ < topk_.queries.rows; first_query_ += chunk_) {
      const int64_t count = std::min(chunk_, topk_.queries.rows - first_query_);
      code_queries(search, count);
      if (k_ > 0) scan_gallery(search, count);
      parallel_for(pool_, count, [&](int64_t begin, int64_t end) { search.finish(begin, end); });
    }
  }

  // A block of the gallery, and the products of its codes with a group of queries.
  struct Block {
    explicit Block(int64_t depth) : codes(kBlockRows * depth), row(depth), row_codes(depth), products(kBlockRows * kGroup) {}
    Buffer<Code> codes;
    Buffer<T> row;  // that is coded on the way
    Buffer<Stored> row_codes;
    Buffer<int32_t> products;
    typename Search::RowNumbers rows;
    float own_records[kCodeRecords * kBlockRows];
    Records records;
    int32_t begin[kBlockRows];  // of the sums of a row
  };

  bool excludes(int64_t query, int64_t index) const {
    if (topk_.exclude_indptr == nullptr) return false;
    int64_t begin = topk_.exclude_indptr[query], end = topk_.exclude_indptr[query + 1];
    while (begin < end) {  // they rise
      const int64_t middle = begin + (end - begin) / 2;
      if (topk_.exclude_indices[middle] == index) return true;
      if (topk_.exclude_indices[middle] < index) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return false;
  }

  static int64_t in_panels(int64_t queries) { return (queries + kPanelQueries - 1) / kPanelQueries; }
  int64_t panel_size() const { return depth_ / Packing::kTogether * kPanelQueries; }

  const TopkCall& topk_;
  const CodedRows& gallery_;
  const Parallel& pool_;
  const int64_t m_, k_;
  const int64_t depth_;   // of the codes, padded
  const int64_t stride_;  // of a loaded row
  const int64_t blocks_;
  const int64_t parts_;      // of the gallery: where queries are too few to share out, or rows are coded on the way
  const int64_t chunk_;      // of queries
  int64_t first_query_ = 0;  // of the chunk at work
  Buffer<T> queries_;
  Buffer<int32_t> panels_;

 private:
  // As many queries as what is kept for them fits in 64 MiB.
  int64_t queries_per_chunk(int64_t item_bytes) const {
    const int64_t fitting = (int64_t{64} << 20) / (parts_ * item_bytes) / kGroup * kGroup;
    return std::min(std::clamp<int64_t>(fitting, kPanelQueries, 4096), std::max<int64_t>(topk_.queries.rows, 1));
  }

  void code_queries(Search& search, int64_t count) {
    parallel_for(pool_, in_panels(count), [&](int64_t begin, int64_t end) {
      Buffer<Stored> codes(depth_);
      for (int64_t p = begin; p < end; ++p) {
        for (int64_t lane = 0; lane < kPanelQueries; ++lane) {
          const int64_t q = p * kPanelQueries + lane;
          CodedRow coded{0.0f, 0.0f, 0.0f, 0.0f, 0};
          std::fill(codes.get(), codes.get() + depth_, Stored{0});
          if (q < count) {
            T* row = queries_.get() + q * stride_;
            load_row(topk_.queries, first_query_ + q, normalizes(topk_.similarity), row, stride_);
            coded = code_row(row, topk_.queries.dim, depth_, codes.get());
          }
          pack_query<Packing>(codes.get(), depth_, lane, panels_.get() + p * panel_size());
          search.prepare(q < count ? q : -1, coded, p, lane);
        }
      }
    });
  }

  void scan_gallery(Search& search, int64_t count) {
    if (parts_ > 1) {  // each thread takes a share of the gallery
      parallel_for(pool_, parts_, [&](int64_t begin, int64_t end) {
        for (int64_t part = begin; part < end; ++part) {
          scan(search, 0, count, blocks_ * part / parts_, blocks_ * (part + 1) / parts_, part);
        }
      });
    } else {
      parallel_for(pool_, (count + kGroup - 1) / kGroup,
                   [&](int64_t begin, int64_t end) { scan(search, begin * kGroup, std::min(end * kGroup, count), 0, blocks_, 0); });
    }
  }

  void scan(Search& search, int64_t q_begin, int64_t q_end, int64_t block_begin, int64_t block_end, int64_t part) const {
    typename Products::Session session;
    Block block(depth_);
    const int64_t p_begin = q_begin / kPanelQueries, p_end = in_panels(q_end);
    typename Search::Thread thread(search, p_begin, p_end);
    for (int64_t b = block_begin; b < block_end; ++b) {
      const int64_t first = b * kBlockRows, count = std::min(kBlockRows, m_ - first);
      const Code* codes = read_block(first, count, block);
      search.numbers_of_rows(block.records, count, block.rows);
      for (int64_t p = p_begin; p < p_end; p += kGroupPanels) {
        const int64_t panels = std::min(kGroupPanels, p_end - p);
        for (int64_t r = 0; r < kBlockRows; ++r) {
          std::fill(block.products.get() + r * kGroup, block.products.get() + r * kGroup + panels * kPanelQueries, block.begin[r]);
        }
        Products::multiply(session, codes, depth_, (count + kCodeRows - 1) / kCodeRows * kCodeRows, panels_.get() + p * panel_size(),
                           panels, depth_, block.products.get(), kGroup);
        for (int64_t i = 0; i < panels; ++i) search.take(block, first, count, i, p + i, thread, part);
      }
    }
  }

  // Codes `count` rows into the block, with its own records.
  void code_block(int64_t first, int64_t count, Block& block) const {
    for (int64_t r = 0; r < count; ++r) {
      copy_row(topk_.gallery, first + r, block.row.get());
      store_record(code_row(block.row.get(), topk_.gallery.dim, depth_, block.row_codes.get()), block.own_records + r, kBlockRows);
      std::copy(block.row_codes.get(), block.row_codes.get() + depth_, block.codes.get() + r * depth_);
    }
    std::fill(block.codes.get() + count * depth_, block.codes.get() + kBlockRows * depth_, Code{0});
  }

  // Codes of `count` rows as the products take them, with zero rows behind the last.
  const Code* read_block(int64_t first, int64_t count, Block& block) const {
    const bool given = gallery_.codes != nullptr;
    block.records = given ? Records{gallery_.records + first, m_} : Records{block.own_records, kBlockRows};
    if (!given) code_block(first, count, block);
    for (int64_t r = 0; r < count; ++r) block.begin[r] = Packing::kOffset * static_cast<int32_t>(block.records[kCodeSum][r]);
    std::fill(block.begin + count, block.begin + kBlockRows, 0);
    if (!given) return block.codes.get();
    const Stored* stored = static_cast<const Stored*>(gallery_.codes) + first * depth_;
    if constexpr (std::is_same_v<Code, Stored>) {
      if (count == kBlockRows) return stored;
    }
    std::copy(stored, stored + count * depth_, block.codes.get());
    std::fill(block.codes.get() + count * depth_, block.codes.get() + kBlockRows * depth_, Code{0});
    return block.codes.get();
  }
};

}  // namespace pairloom::PAIRLOOM_ISA
