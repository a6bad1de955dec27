//! Limits of cards that a program may also have to run on.

use std::sync::OnceLock;

use super::trace::Trace;
use crate::check;

/// A card: its word in `FERROCE_CHECK`, and the limits of what it is asked for by name.
struct Card {
    word: &'static str,
    limits: &'static [(&'static str, u32)],
}

const CARDS: [Card; 2] = [
    // `ibv_devinfo -v` of a ConnectX-6 (firmware 20.35).
    Card {
        word: "mlx5",
        limits: &[
            ("max_send_wr", 32_768),
            ("max_recv_wr", 32_768),
            ("max_send_sge", 30),
            ("max_recv_sge", 30),
            ("cqe", 4_194_303),
            ("max_wr", 32_767),
            ("max_sge", 31),
            ("max_rd_atomic", 16),
            ("max_dest_rd_atomic", 16),
        ],
    },
    // Linux 6.12, `rxe_param.h`.
    Card {
        word: "rxe",
        limits: &[
            ("max_send_wr", 1_048_576),
            ("max_recv_wr", 1_048_576),
            ("max_send_sge", 32),
            ("max_recv_sge", 32),
            ("max_inline_data", 512),
            ("cqe", 32_767),
            ("max_wr", 1_048_576),
            ("max_sge", 27),
            ("max_rd_atomic", 128),
            ("max_dest_rd_atomic", 128),
        ],
    },
];

/// The words of the cards that were chosen.
static CHOSEN: OnceLock<Vec<String>> = OnceLock::new();

/// Chooses the cards of a list such as `mlx5,rxe`; every other word stands for none.
pub(super) fn choose(words: &str) {
    let _ = CHOSEN.set(words.split(',').map(|word| word.trim().to_owned()).collect());
}

/// Tells what `call` asks for and a chosen card refuses.
pub(crate) fn sizes(call: &str, asked: &[(&'static str, u32)]) {
    let is_chosen =
        |card: &&Card| CHOSEN.get().is_some_and(|words| words.iter().any(|word| word == card.word));
    for card in CARDS.iter().filter(is_chosen) {
        for (name, value) in asked {
            let limit = card.limits.iter().find(|(limit, most)| limit == name && most < value);
            let Some((_, most)) = limit else { continue };
            let word = card.word;
            check::with(|state| {
                let text = format!(
                    "{call}: {name} is {value}, and {word} has at most {most}; ask ibv_query_device, and for no more"
                );
                state.tell((word, *name), &text, &Trace::here(), None);
            });
        }
    }
}
