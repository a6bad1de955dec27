//! An assembler for BPF programs: instructions with labels.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// A register. [`Reg::R0`] to `R5` lose their values in a call; [`Reg::Fp`] is the end of the 512 octets of
/// stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Reg {
    R0 = 0,
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R6 = 6,
    R7 = 7,
    R8 = 8,
    R9 = 9,
    Fp = 10,
}

/// The width of a load or store.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Size {
    Word = 0x00,
    Half = 0x08,
    Octet = 0x10,
    Double = 0x18,
}

/// Arithmetic on 64 bits.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum Alu {
    Add = 0x00,
    And = 0x50,
    Shr = 0x70,
    Mov = 0xb0,
}

/// Comparisons of 64 bits without sign.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(super) enum If {
    Equal = 0x10,
    Greater = 0x20,
    /// The two values have a bit in common.
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// Functions of the kernel; the numbers are those of `enum bpf_func_id`.
#[derive(Clone, Copy, Debug)]
#[repr(i32)]
pub(super) enum Helper {
    MapLookup = 1,
    Redirect = 23,
    RedirectMap = 51,
    FibLookup = 69,
    /// Linux 5.18.
    FrameLength = 188,
}

/// The second operand: a register, or a constant that the kernel extends with its sign.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Reg(Reg),
    Imm(i32),
}

impl From<Reg> for Operand {
    fn from(reg: Reg) -> Self {
        Self::Reg(reg)
    }
}

impl From<i32> for Operand {
    fn from(value: i32) -> Self {
        Self::Imm(value)
    }
}

/// A place in a program to jump to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct Program {
    instructions: Vec<Instruction>,
    /// The instruction of each label, once it is known.
    labels: Vec<Option<usize>>,
    /// Instructions that jump to a label.
    jumps: Vec<(usize, Label)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Instruction {
    opcode: u8,
    to: u8,
    from: u8,
    offset: i16,
    constant: i32,
}

/// Classes of instructions, and where the second operand is.
const LOAD_CONSTANT: u8 = 0x18;
const LDX: u8 = 0x61;
const ST: u8 = 0x62;
const STX: u8 = 0x63;
const JMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const FROM_REG: u8 = 0x08;
const TO_BIG_ENDIAN: u8 = 0xdc;
const ATOMIC_DOUBLE: u8 = 0xdb;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const PSEUDO_MAP_FD: u8 = 1;

impl Program {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Makes a label, whose place is set by [`Program::here`].
    pub(super) fn label(&mut self) -> Label {
        self.labels.push(None);
        Label(self.labels.len() - 1)
    }

    /// Sets a label to the next instruction.
    pub(super) fn here(&mut self, label: Label) {
        if let Some(place) = self.labels.get_mut(label.0) {
            *place = Some(self.instructions.len());
        }
    }

    pub(super) fn alu(&mut self, operation: Alu, to: Reg, operand: impl Into<Operand>) {
        self.with_operand(operation as u8 | ALU64, to, operand.into());
    }

    pub(super) fn mov(&mut self, to: Reg, operand: impl Into<Operand>) {
        self.alu(Alu::Mov, to, operand);
    }

    /// Converts the low 16 or 32 bits between host and network order, and clears the rest.
    pub(super) fn swap(&mut self, to: Reg, bits: i32) {
        self.put(TO_BIG_ENDIAN, to as u8, 0, 0, bits);
    }

    /// `to = *(base + offset)`, extended with zeros.
    pub(super) fn load(&mut self, size: Size, to: Reg, base: Reg, offset: i16) {
        self.put(LDX | size as u8, to as u8, base as u8, offset, 0);
    }

    /// `*(base + offset) = operand`.
    pub(super) fn store(&mut self, size: Size, base: Reg, offset: i16, operand: impl Into<Operand>) {
        match operand.into() {
            Operand::Reg(from) => self.put(STX | size as u8, base as u8, from as u8, offset, 0),
            Operand::Imm(value) => self.put(ST | size as u8, base as u8, 0, offset, value),
        }
    }

    /// Adds `from` to the 64 bits at `base`, atomically.
    pub(super) fn atomic_add(&mut self, base: Reg, from: Reg) {
        self.put(ATOMIC_DOUBLE, base as u8, from as u8, 0, 0);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.put(JMP, 0, 0, 0, 0);
    }

    pub(super) fn jump_if(&mut self, condition: If, left: Reg, right: impl Into<Operand>, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.with_operand(condition as u8 | JMP, left, right.into());
    }

    /// `to` = the map; the kernel holds it as long as the program.
    pub(super) fn map(&mut self, to: Reg, map: &impl AsFd) {
        self.put(LOAD_CONSTANT, to as u8, PSEUDO_MAP_FD, 0, map.as_fd().as_raw_fd());
        self.put(0, 0, 0, 0, 0);
    }

    /// `r0` = the result of the function for the arguments in `r1` and up.
    pub(super) fn call(&mut self, helper: Helper) {
        self.put(CALL, 0, 0, 0, helper as i32);
    }

    /// Ends the program with the result in `r0`.
    pub(super) fn exit(&mut self) {
        self.put(EXIT, 0, 0, 0, 0);
    }

    /// Returns the program in the kernel's form.
    ///
    /// # Errors
    /// `InvalidInput` if a label has no place, or is farther away than a jump reaches.
    pub(super) fn finish(mut self) -> io::Result<Vec<u64>> {
        for (at, label) in &self.jumps {
            let distance = self
                .labels
                .get(label.0)
                .copied()
                .flatten()
                // A jump counts from the instruction behind it.
                .and_then(|place| i16::try_from(place as i64 - *at as i64 - 1).ok())
                .ok_or(io::ErrorKind::InvalidInput)?;
            if let Some(instruction) = self.instructions.get_mut(*at) {
                instruction.offset = distance;
            }
        }
        Ok(self.instructions.iter().map(|instruction| instruction.encode()).collect())
    }

    fn with_operand(&mut self, opcode: u8, to: Reg, operand: Operand) {
        match operand {
            Operand::Reg(from) => self.put(opcode | FROM_REG, to as u8, from as u8, 0, 0),
            Operand::Imm(value) => self.put(opcode, to as u8, 0, 0, value),
        }
    }

    fn put(&mut self, opcode: u8, to: u8, from: u8, offset: i16, constant: i32) {
        self.instructions.push(Instruction { opcode, to, from, offset, constant });
    }
}

impl Instruction {
    fn encode(self) -> u64 {
        // Two fields of four bits, of which the first one is in the lower bits on a machine with the lower
        // octet first.
        let registers =
            if cfg!(target_endian = "little") { self.to | self.from << 4 } else { self.to << 4 | self.from };
        let [o0, o1] = self.offset.to_ne_bytes();
        let [c0, c1, c2, c3] = self.constant.to_ne_bytes();
        u64::from_ne_bytes([self.opcode, registers, o0, o1, c0, c1, c2, c3])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn octets(program: Program) -> Vec<[u8; 8]> {
        program.finish().unwrap().into_iter().map(u64::to_ne_bytes).collect()
    }

    /// The octets are those of RFC 9669, with the lower octet first.
    #[test]
    #[cfg(target_endian = "little")]
    fn instructions_have_the_kernels_form() {
        let mut p = Program::new();
        p.mov(Reg::R0, 2);
        p.mov(Reg::R6, Reg::R1);
        p.alu(Alu::Add, Reg::R2, -8);
        p.alu(Alu::And, Reg::R3, Reg::R4);
        p.alu(Alu::Shr, Reg::R9, 12);
        p.swap(Reg::R2, 16);
        p.load(Size::Half, Reg::R1, Reg::R7, 12);
        p.store(Size::Word, Reg::Fp, -4, 0x1234);
        p.store(Size::Double, Reg::Fp, -16, Reg::R9);
        p.store(Size::Octet, Reg::R7, 1, Reg::R1);
        p.atomic_add(Reg::R0, Reg::R1);
        p.call(Helper::RedirectMap);
        p.exit();
        assert_eq!(
            octets(p),
            [
                [0xb7, 0x00, 0, 0, 2, 0, 0, 0],
                [0xbf, 0x16, 0, 0, 0, 0, 0, 0],
                [0x07, 0x02, 0, 0, 0xf8, 0xff, 0xff, 0xff],
                [0x5f, 0x43, 0, 0, 0, 0, 0, 0],
                [0x77, 0x09, 0, 0, 12, 0, 0, 0],
                [0xdc, 0x02, 0, 0, 16, 0, 0, 0],
                [0x69, 0x71, 12, 0, 0, 0, 0, 0],
                [0x62, 0x0a, 0xfc, 0xff, 0x34, 0x12, 0, 0],
                [0x7b, 0x9a, 0xf0, 0xff, 0, 0, 0, 0],
                [0x73, 0x17, 1, 0, 0, 0, 0, 0],
                [0xdb, 0x10, 0, 0, 0, 0, 0, 0],
                [0x85, 0x00, 0, 0, 51, 0, 0, 0],
                [0x95, 0x00, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn jumps_count_from_the_next_instruction_and_a_map_takes_two() {
        let mut p = Program::new();
        let (back, end) = (p.label(), p.label());
        p.here(back);
        p.jump_if(If::Equal, Reg::R1, 5, end);
        p.jump_if(If::Greater, Reg::R1, Reg::R2, back);
        p.map(Reg::R1, &std::io::stdin());
        p.jump(back);
        p.here(end);
        p.exit();
        assert_eq!(
            octets(p),
            [
                [0x15, 0x01, 4, 0, 5, 0, 0, 0],
                [0x2d, 0x21, 0xfe, 0xff, 0, 0, 0, 0],
                [0x18, 0x11, 0, 0, 0, 0, 0, 0],
                [0; 8],
                [0x05, 0x00, 0xfb, 0xff, 0, 0, 0, 0],
                [0x95, 0x00, 0, 0, 0, 0, 0, 0],
            ]
        );
    }

    #[test]
    fn a_label_without_a_place_or_out_of_reach_is_an_error() {
        let mut p = Program::new();
        let nowhere = p.label();
        p.jump(nowhere);
        assert_eq!(p.finish().unwrap_err().kind(), io::ErrorKind::InvalidInput);

        for (between, reachable) in [(32_767, true), (32_768, false)] {
            let mut p = Program::new();
            let far = p.label();
            p.jump(far);
            (0..between).for_each(|_| p.exit());
            p.here(far);
            p.exit();
            assert_eq!(p.finish().is_ok(), reachable, "{between}");
        }
    }
}
