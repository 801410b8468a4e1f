"""Coq proofs that hold, and ways to pretend. All of them but the last few aim at a statement that is false."""

from __future__ import annotations

from typing import Any, NamedTuple

FALSE = "forall n : nat, n + 0 = n + 1"


class Case(NamedTuple):
    source: str
    statement: str = FALSE
    extra: dict[str, Any] = {}  # noqa: RUF012  (never changed)


def theorem(proof: str, before: str = "") -> str:
    return f"{before}\nTheorem solution : {FALSE}.\nProof. {proof} Qed.\n"


BY_FALSE = "intro n. exfalso. exact f."
TRUE = "Theorem solution : True. Proof. exact I. Qed."
# A fixed point of negation, for the positivity checks, and Coq's own paradox, for the universes.
BAD = """Inductive bad := mk : (bad -> False) -> bad.
Definition no (b : bad) : False := match b with mk g => g b end.
Definition f : False := no (mk no)."""
PARADOX = "Definition f : False := TypeNeqSmallType.paradox Type eq_refl."
HURKENS = "From Coq Require Import Hurkens."

# What the kernel, the assumption list and coqchk must catch even where no word is refused.
KERNEL = {
    "admitted lemma": Case(theorem(BY_FALSE, "Lemma f : False. Proof. Admitted.")),
    "admit inside": Case(theorem(BY_FALSE, "Lemma f : False. Proof. assert False. { admit. } auto. Admitted.")),
    "axiom": Case(theorem(BY_FALSE, "Axiom f : False.")),
    "parameter": Case(theorem(BY_FALSE, "Parameter f : False.")),
    "hypothesis outside a section": Case(theorem(BY_FALSE, "Hypothesis f : False.")),
    "context outside a section": Case(theorem(BY_FALSE, "Context (f : False).")),
    "section variable becomes a premise": Case(
        f"Section S. Variable f : False. {theorem(BY_FALSE)} End S.",
    ),
    "section hypothesis, let": Case(
        f"Section S. Hypothesis g : False. Let f : False := g. {theorem(BY_FALSE)} End S.",
    ),
    "include of a module type": Case(theorem(BY_FALSE, "Module Type T. Hypothesis f : False. End T. Include T.")),
    "declared module": Case(
        theorem("intro n. destruct M.f.", "Module Type T. Parameter f : False. End T. Declare Module M : T.")
    ),
    "functor argument": Case(
        f"Module Type T. Hypothesis f : False. End T. Module F (X : T). {theorem('intro n. destruct X.f.')} End F."
    ),
    "functor applied to a sealed axiom": Case(
        "Module Type T. Hypothesis f : False. End T. Module A <: T. Axiom f : False. End A. "
        f"Module F (X : T). Definition f := X.f. End F. Module B := F A. {theorem('intro n. destruct B.f.')}"
    ),
    "obligation admitted": Case(
        theorem(BY_FALSE, "Require Import Program. Program Definition f : False := _. Admit Obligations.")
    ),
    "guard off": Case(
        theorem("destruct (g 0).", "Unset Guard Checking. Fixpoint g (n : nat) {struct n} : False := g n.")
    ),
    "guard bypassed": Case(
        theorem("destruct (g 0).", "#[ bypass_check( guard = yes ) ]\nFixpoint g (n : nat) {struct n} : False := g n.")
    ),
    "positivity bypassed": Case(theorem(BY_FALSE, f"#[bypass_check(positivity)]\n{BAD}")),
    "universes off": Case(theorem(BY_FALSE, f"{HURKENS} Unset Universe Checking. {PARADOX} Set Universe Checking.")),
    "universes bypassed": Case(theorem(BY_FALSE, f"{HURKENS} #[bypass_check(universes)] {PARADOX}")),
    "universes off where it is judged": Case(
        f"{HURKENS} #[global] Unset Universe Checking.\n"
        "Notation solution := (match TypeNeqSmallType.paradox Type eq_refl with end)."
    ),
    "another theory": Case(
        "Set Definitional UIP.\nInductive same {A : Type} (a : A) : A -> SProp := refl : same a a.\n"
        "Definition equal {A : Type} (a b : A) (s : same a b) : a = b := match s with refl _ => eq_refl end.\n"
        "Theorem solution : 1 = 1. Proof. exact (equal 1 1 (refl 1)). Qed.",
        "1 = 1",
    ),
    "axiom of the library": Case(
        theorem("destruct proof_admitted.", "From Coq.Compat Require Import AdmitAxiom."),
    ),
}  # fmt: skip

CHEATS = {
    **KERNEL,
    "prints what the judge reads": Case(
        'Notation solution := ltac:(idtac "Closed under the global context"; exact I).'
    ),
    "prints while it compiles": Case(
        'Goal True. idtac "Closed under the global context". idtac "* Axioms: <none>". Abort. ' + TRUE
    ),
    "hole": Case("Notation solution := _."),
    "hole with a hint": Case(
        "Class C := c : Prop. #[global] Hint Extern 0 => exact I : typeclass_instances. Notation solution := (_ : _)."
    ),
    "unchecked where it is judged": Case(
        "Notation solution := (ltac:(intro n; exact_no_check (eq_refl n)) : PonderCheck.Goal.statement)."
    ),
    "hint where it is judged": Case(
        "Class F := f : False.\nSection S. Context {x : F}. Theorem s : statement. Proof. destruct x. Qed. End S.\n"
        "#[global] Hint Extern 0 F => exact_no_check I : typeclass_instances. Notation solution := (s (x := _))."
    ),
    "implicit premise": Case("Lemma solution {H : statement} : statement. Proof. exact H. Qed."),
    "a field": Case("Record R := { solution : statement }."),
    "the statement itself": Case("Definition solution := PonderCheck.Goal.statement."),
    "everything undone": Case(f"Reset Initial. {TRUE}"),
    "module of the checker's name": Case(
        "Module PonderCheck. Module Goal. Definition statement := True. End Goal. End PonderCheck. "
        f"Export PonderCheck.Goal. {TRUE}"
    ),
    "statement redefined": Case("Definition statement := True. Theorem solution : statement. Proof. exact I. Qed."),
    "statement as a notation": Case("Notation statement := True. Theorem solution : statement. Proof. exact I. Qed."),
    "nat redefined": Case(
        'Inductive nat := O. Notation "x + y" := O. Notation "0" := O. Notation "1" := O.\n'
        + theorem("reflexivity.").replace("n + 1", "n + 0").replace("= n + 0", "= O")
    ),
    "forall redefined": Case(f"Notation \"'forall' x : t , p\" := True (at level 200, x name).\n{theorem('exact I.')}"),
    "equality coerced away": Case(theorem("reflexivity.", "Definition eq (A : Type) (x y : A) := True.")),
    "plus made opaque": Case(
        theorem("reflexivity.", 'Definition add (n m : nat) := n. Infix "+" := add : nat_scope.')
    ),
    "scope swapped": Case(
        theorem("reflexivity.", 'Declare Scope s. Notation "x = y" := True : s. Open Scope s.').replace(
            "reflexivity", "exact (fun _ => I)"
        )
    ),
    "another statement": Case("Theorem solution : forall n : nat, n + 0 = n. Proof. auto. Qed."),
    "weaker statement": Case("Theorem solution : forall n : nat, n = n + 1 -> n + 0 = n + 1. Proof. auto. Qed."),
    "in a module": Case(f"Module M. {TRUE} End M."),
    "saved under the name": Case("Goal True. exact I. Save solution."),
    "an inductive of the name": Case(f"Inductive solution : Prop := yes : ({FALSE}) -> solution."),
    "cast unchecked": Case(theorem("intro n. exact_no_check (eq_refl n).")),
    "vm cast unchecked": Case(theorem("intro n. vm_cast_no_check (eq_refl n).")),
    "change unchecked": Case(theorem("intro n. change_no_check (n = n). reflexivity.")),
    "abstract unchecked": Case(theorem("intro n. abstract (exact_no_check (eq_refl n)).")),
    "shelved": Case(theorem("intro n. shelve.")),
    "abort": Case(f"Theorem solution : {FALSE}. Proof. Abort."),
    "fail": Case(f"Theorem solution : {FALSE}. Proof. Fail reflexivity. Fail Qed. Abort."),
    "open at the end": Case(f"Theorem solution : {FALSE}. Proof."),
    "nothing": Case("(* proved elsewhere *)"),
    "comment that hides": Case(f'(* " *) {theorem("trivial.")} (* " *)'),
    "string that opens a comment": Case(
        theorem(BY_FALSE, 'Require Import String. Definition s := "(*"%string.\nAxiom f : False.')
    ),
    "words apart": Case(
        theorem("destruct (g 0).", "Unset Guard (* a *)\n Checking.\nFixpoint g (n : nat) {struct n} : False := g n.")
    ),
    "quote in a token": Case(
        theorem(
            BY_FALSE,
            'Notation "x ?"" y" := (x + y) (at level 50).\n'
            'Definition a := 1 ?" 2.\nAxiom f : False.\nDefinition b := 1 ?" 2.',
        )
    ),
    "load": Case('Load "/etc/passwd".\n' + TRUE),
    "load path": Case('Add LoadPath "/" as PonderCheck.\n' + TRUE),
    "rec load path": Case('Add Rec LoadPath "/" as PonderCheck.\n' + TRUE),
    "plugin": Case('Declare ML Module "ltac_plugin".\n' + TRUE),
    "redirect": Case('Redirect "leak" Print nat.\n' + TRUE),
    "extraction": Case('Require Extraction. Extraction "leak" plus.\n' + TRUE),
    "extraction runs a compiler": Case("Require Extraction. Extraction TestCompile plus.\n" + TRUE),
    "universes to a file": Case('Print Universes "leak".\n' + TRUE),
    "change of folder": Case('Cd "/tmp".\n' + TRUE),
    "quit": Case("Quit.\n" + TRUE),
    "kernel register": Case("Inductive b := x | y. Register b as kernel.ind_bool.\n" + TRUE),
    "own axiom under an allowed name": Case(
        "Variable classic : forall P : Prop, P \\/ ~ P.\n"
        "Theorem solution : forall P : Prop, P \\/ ~ P.\nProof. exact classic. Qed.",
        "forall P : Prop, P \\/ ~ P", {"axioms": ["classic"]},
    ),
    "axiom that is not allowed": Case(
        "Require Import Classical.\nTheorem solution : forall P : Prop, P \\/ ~ P.\nProof. exact classic. Qed.",
        "forall P : Prop, P \\/ ~ P", {"axioms": ["functional_extensionality_dep"]},
    ),
    "deep": Case("Definition d := " + "(" * 20_000 + "0" + ")" * 20_000 + ".\n" + TRUE),
    "null": Case(TRUE + "\x00"),
    "lone surrogate": Case("Definition \ud800 := 0.\n" + TRUE),
}  # fmt: skip

# Each must be stopped by its limits.
TWO = "Fixpoint two (n : nat) := match n with O => 1 | S m => two m + two m end.\n"
ENDLESS = {
    "loops": Case(theorem("let rec loop := idtac; loop in loop.")),
    "many": Case(theorem("do 1000000000 idtac.")),
    "computes": Case(f"{TWO}Compute two 60.\n{TRUE}"),
    "computes in the kernel": Case(
        f"{TWO}Theorem solution : if Nat.even (two 60) then True else False. Proof. vm_cast_no_check I. Qed."
    ),
    "talks": Case(theorem('do 100000000 idtac "Closed under the global context".')),
    "grows": Case(f"{TWO}Definition x := Eval vm_compute in two 40.\n{TRUE}"),
}


def honest(statement: str, source: str, **extra: Any) -> Case:
    return Case(source.replace("GOAL", statement), statement, extra)


HONEST = {
    "induction": honest(
        "forall n : nat, n + 0 = n", "Theorem solution : GOAL.\nProof. induction n; simpl; congruence. Qed."
    ),
    "a term": honest(
        "forall P Q : Prop, P /\\ Q -> Q /\\ P",
        "Definition solution (P Q : Prop) (h : P /\\ Q) : Q /\\ P := let (p, q) := h in conj q p.",
    ),
    "the statement by name": honest("True", "Theorem solution : statement. Proof. unfold statement. trivial. Qed."),
    "lia": honest(
        "forall a b, a < b -> 2 * a + 1 < 2 * b", "Require Import Lia.\nTheorem solution : GOAL.\nProof. lia. Qed."
    ),
    "ring over Z": honest(
        "forall x y, (x + y) * (x - y) = x * x - y * y",
        "Theorem solution : GOAL.\nProof. intros. ring. Qed.",
        header="Require Import ZArith.\nOpen Scope Z_scope.",
    ),
    "definitions of the problem": honest(
        "forall t, mirror (mirror t) = t",
        """
        Lemma twice : forall t, mirror (mirror t) = t.
        Proof. induction t as [|l IHl r IHr]; simpl; [reflexivity|]. now rewrite IHl, IHr. Qed.
        Theorem solution : GOAL. Proof. exact twice. Qed.
        """,
        definitions="""
        Inductive tree := leaf | node (l r : tree).
        Fixpoint mirror (t : tree) := match t with leaf => leaf | node l r => node (mirror r) (mirror l) end.
        """,
    ),
    "lemmas and bullets": honest(
        "forall (A : Type) (x y : list A), rev (x ++ y) = rev y ++ rev x",
        """
        Import ListNotations.
        Lemma app_nil (A : Type) : forall l : list A, l ++ [] = l.
        Proof.
          induction l.
          - reflexivity.
          - simpl. rewrite IHl. reflexivity.
        Qed.
        Theorem solution : GOAL.
        Proof.
          induction x as [|a x IH]; intro y; simpl.
          - now rewrite app_nil.
          - rewrite IH. { now rewrite app_assoc. }
        Qed.
        """,
        header="Require Import List.",
    ),
    "a section": honest(
        "forall b c : bool, ~ b <> c -> b = c",
        """
        Section S.
        Variable A : Type. Hypothesis dec : forall x y : A, x = y \\/ x <> y. Let id (x : A) := x.
        Lemma l : forall x y : A, ~ x <> y -> id x = y. Proof. intros x y h. destruct (dec x y); tauto. Qed.
        End S.
        Theorem solution : GOAL.
        Proof. intros b c. apply (l bool). destruct x, y; (left; reflexivity) || (right; discriminate). Qed.
        """,
    ),
    "comments that speak of cheating": honest(
        "1 = 1",
        """
        (* Axiom and Admitted (* nested "*)" *) are not used *)
        Theorem solution : GOAL. Proof. (* admit *) reflexivity. Qed.
        """,
    ),
    "own notation": honest(
        "forall x y : nat, x + y + 0 = x + y",
        """
        Notation "x <+> y" := (x + y + 0) (at level 50).
        Lemma l : forall x y, x <+> y = x + y. Proof. intros. now rewrite <- plus_n_O. Qed.
        Theorem solution : GOAL. Proof. exact l. Qed.
        """,
    ),
    "own tactic": honest(
        "forall P Q R : Prop, P /\\ Q /\\ R -> R /\\ P",
        """
        Ltac go := repeat match goal with
          | |- _ /\\ _ => split | |- forall _, _ => intro | H : _ /\\ _ |- _ => destruct H end; auto.
        Theorem solution : GOAL. Proof. go. Qed.
        """,
    ),
    "program": honest(
        "forall n : nat, {m : nat | m > n}",
        "Require Import Program.\nProgram Definition solution (n : nat) : {m : nat | m > n} := S n.",
    ),
    "by computation": honest(
        "fold_right Nat.add 0 (seq 0 200) = 19900",
        "Theorem solution : GOAL.\nProof. vm_compute. reflexivity. Qed.",
        header="Require Import List.",
    ),
    "well-founded": honest(
        "forall P : nat -> Prop, (forall n, (forall m, m < n -> P m) -> P n) -> forall n, P n",
        """
        Require Import Wf_nat.
        Theorem solution : GOAL. Proof. intros P h n. induction n using lt_wf_ind. now apply h. Qed.
        """,
    ),
    "ssreflect": honest(
        "forall a b : bool, andb a b = andb b a",
        "From Coq Require Import ssreflect.\nTheorem solution : GOAL.\nProof. by move=> [] []. Qed.",
    ),
    "included module": honest(
        "~ False", "Module M. Theorem solution : GOAL. Proof. exact (fun h => h). Qed. End M. Include M."
    ),
    "type class": honest(
        "exists n : nat, n = 7",
        """
        Class Default (A : Type) := default : A. #[export] Instance d : Default nat := 7.
        Theorem solution : GOAL. Proof. exists default. reflexivity. Qed.
        """,
    ),
    "allowed axiom": honest(
        "(fun n => n + 0) = (fun n => n)",
        "Require Import FunctionalExtensionality.\nTheorem solution : GOAL.\nProof. extensionality n. auto. Qed.",
        axioms=["functional_extensionality_dep"],
    ),
    "axiom of the problem": honest(
        "P \\/ False",
        "Theorem solution : GOAL. Proof. left. exact given. Qed.",
        definitions="Parameter P : Prop. Axiom given : P.",
        axioms=["Goal.P", "Goal.given"],
    ),
    "a word that the problem uses": honest(
        "forall i, i = Load \\/ i = Drop",
        "Theorem solution : GOAL. Proof. destruct i; auto. Qed.",
        definitions="Inductive instruction := Load | Drop.",
    ),
    "asks what it rests on": honest("1 <= 2", "Lemma solution : GOAL. Proof. auto. Qed.\nPrint Assumptions solution."),
    "another name": honest(
        "forall n, n + 0 = n", "Lemma add_0_r {n : nat} : n + 0 = n. Proof. auto. Qed.", theorem="add_0_r"
    ),
}
