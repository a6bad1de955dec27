//! Rates of ports and paths: `ibv_rate` codes, multiples of 2.5 Gb/s and Mb/s.

use core::ffi::c_int;

use ferroce_abi as abi;

struct Rate {
    code: abi::ibv_rate,
    /// In 2.5 Gb/s; 0 if it is no whole number of those.
    multiple: c_int,
    megabits: c_int,
}

const fn rate(code: abi::ibv_rate, multiple: c_int, megabits: c_int) -> Rate {
    Rate { code, multiple, megabits }
}

const RATES: [Rate; 23] = [
    rate(abi::IBV_RATE_2_5_GBPS, 1, 2_500),
    rate(abi::IBV_RATE_5_GBPS, 2, 5_000),
    rate(abi::IBV_RATE_10_GBPS, 4, 10_000),
    rate(abi::IBV_RATE_20_GBPS, 8, 20_000),
    rate(abi::IBV_RATE_30_GBPS, 12, 30_000),
    rate(abi::IBV_RATE_40_GBPS, 16, 40_000),
    rate(abi::IBV_RATE_60_GBPS, 24, 60_000),
    rate(abi::IBV_RATE_80_GBPS, 32, 80_000),
    rate(abi::IBV_RATE_120_GBPS, 48, 120_000),
    rate(abi::IBV_RATE_14_GBPS, 0, 14_062),
    rate(abi::IBV_RATE_56_GBPS, 0, 56_250),
    rate(abi::IBV_RATE_112_GBPS, 0, 112_500),
    rate(abi::IBV_RATE_168_GBPS, 0, 168_750),
    rate(abi::IBV_RATE_25_GBPS, 0, 25_781),
    rate(abi::IBV_RATE_100_GBPS, 0, 103_125),
    rate(abi::IBV_RATE_200_GBPS, 0, 206_250),
    rate(abi::IBV_RATE_300_GBPS, 0, 309_375),
    rate(abi::IBV_RATE_28_GBPS, 11, 28_125),
    rate(abi::IBV_RATE_50_GBPS, 20, 53_125),
    rate(abi::IBV_RATE_400_GBPS, 160, 425_000),
    rate(abi::IBV_RATE_600_GBPS, 240, 637_500),
    rate(abi::IBV_RATE_800_GBPS, 320, 850_000),
    rate(abi::IBV_RATE_1200_GBPS, 480, 1_275_000),
];

/// The rate as a multiple of 2.5 Gb/s, -1 for an unknown rate.
pub extern "C" fn ibv_rate_to_mult(rate: abi::ibv_rate) -> c_int {
    RATES.iter().find(|entry| entry.code == rate && entry.multiple > 0).map_or(-1, |entry| entry.multiple)
}

/// The rate of a multiple of 2.5 Gb/s, `IBV_RATE_MAX` if no rate fits.
pub extern "C" fn mult_to_ibv_rate(multiple: c_int) -> abi::ibv_rate {
    RATES
        .iter()
        .find(|entry| entry.multiple == multiple && multiple > 0)
        .map_or(abi::IBV_RATE_MAX, |entry| entry.code)
}

/// The rate in Mb/s, -1 if it is unknown.
pub extern "C" fn ibv_rate_to_mbps(rate: abi::ibv_rate) -> c_int {
    RATES.iter().find(|entry| entry.code == rate).map_or(-1, |entry| entry.megabits)
}

/// Returns the rate of exactly this number of Mb/s, or `IBV_RATE_MAX` if no rate fits.
pub extern "C" fn mbps_to_ibv_rate(megabits: c_int) -> abi::ibv_rate {
    RATES.iter().find(|entry| entry.megabits == megabits).map_or(abi::IBV_RATE_MAX, |entry| entry.code)
}
