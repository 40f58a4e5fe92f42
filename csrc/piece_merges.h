// The merges that a SentencePiece vocabulary implies. Knows strings and scores only.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace pelton {

// Indexes of two pieces that, put together, are a piece.
using PieceMerge = std::pair<int32_t, int32_t>;

// All pairs of pieces that make a piece, the best score of the whole first; equal scores in the order of the pieces,
// the pairs of one piece from the shortest left part on. pieces: UTF-8, all different; cut between characters only.
// Throws std::invalid_argument unless there is one score for each.
std::vector<PieceMerge> piece_merges(const std::vector<std::string_view>& pieces, const std::vector<double>& scores);

}  // namespace pelton
