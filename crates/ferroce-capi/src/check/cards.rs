//! Limits of cards that a program may also have to run on.

use std::sync::OnceLock;

use super::trace::Trace;
use super::with;

const CARDS: [&str; 2] = ["mlx5", "rxe"];

/// The most of what calls ask for, of each card: `ibv_devinfo -v` of a ConnectX-6 (firmware 20.29), and
/// Linux 6.12, `rxe_param.h`.
const LIMITS: [(&str, [u32; 2]); 8] = [
    ("wr", [32_768, 1_048_576]),
    ("send_sge", [30, 32]),
    ("recv_sge", [30, 32]),
    ("inline_data", [u32::MAX, 512]),
    ("cqe", [4_194_303, 32_767]),
    ("srq_wr", [32_767, 1_048_576]),
    ("srq_sge", [31, 27]),
    ("rd_atomic", [16, 128]),
];

/// The words of `FERROCE_CHECK`.
static WORDS: OnceLock<String> = OnceLock::new();

/// Chooses the cards of a list such as `mlx5,rxe`; every other word stands for none.
pub(super) fn choose(words: &str) {
    let _ = WORDS.set(words.to_owned());
}

/// Tells what `call` asks for and a chosen card refuses.
pub(crate) fn sizes(call: &str, asked: &[(&'static str, u32)]) {
    let Some(words) = WORDS.get() else { return };
    for (name, value) in asked {
        let limits = LIMITS.iter().find(|(limit, _)| limit == name).map_or([u32::MAX; 2], |(_, most)| *most);
        for (card, most) in CARDS.into_iter().zip(limits) {
            if *value > most && words.split(',').any(|word| word == card) {
                let text = format!(
                    "{call}: max_{name} is {value}, and {card} has at most {most}; ask for what ibv_query_device tells"
                );
                with(|state| state.tell((card, name), &text, &Trace::here(), None));
            }
        }
    }
}
